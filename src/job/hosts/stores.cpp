#include "job/hosts/stores.h"

#include <cstring>

namespace tutti {
namespace {

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

bool has_payload(std::uint32_t kind) {
  return kind == StoreItem::data || kind == StoreItem::early_bytes;
}

}  // namespace

void StoreMessage::add(const StoreItem& item, const void* payload, std::size_t bytes) {
  const std::size_t begin = message_.size();
  message_.resize(begin + sizeof item + padded(bytes));
  std::memcpy(message_.data() + begin, &item, sizeof item);
  if (bytes > 0) std::memcpy(message_.data() + begin + sizeof item, payload, bytes);
}

void StoreMessage::data(BlockPlace to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  add({.kind = StoreItem::data, .bytes = static_cast<std::uint32_t>(bytes), .to = to}, from, bytes);
}

void StoreMessage::word(BlockPlace to, std::uint64_t value, std::size_t bytes, bool early) {
  add({.kind = early ? StoreItem::early_word : StoreItem::word,
       .bytes = static_cast<std::uint32_t>(bytes),
       .to = to,
       .value = value},
      nullptr, 0);
}

void StoreMessage::time(BlockPlace to, std::int64_t ns_from_now) {
  add({.kind = StoreItem::early_time,
       .bytes = 8,
       .to = to,
       .value = static_cast<std::uint64_t>(ns_from_now)},
      nullptr, 0);
}

void StoreMessage::shared_bytes(BlockPlace to, std::size_t capacity, std::string_view bytes) {
  bytes = bytes.substr(0, capacity);
  add({.kind = StoreItem::early_bytes,
       .bytes = static_cast<std::uint32_t>(bytes.size()),
       .to = to,
       .value = capacity},
      bytes.data(), bytes.size());
}

void StoreMessage::exchange(BlockPlace to, std::uint64_t expected, std::uint64_t desired,
                            std::size_t bytes) {
  add({.kind = StoreItem::exchange,
       .bytes = static_cast<std::uint32_t>(bytes),
       .to = to,
       .value = desired,
       .expected = expected},
      nullptr, 0);
}

std::string StoreMessage::take() {
  std::string all;
  all.swap(message_);
  return all;
}

bool StoreReader::next() {
  if (rest_.size() < sizeof item_) return false;
  std::memcpy(&item_, rest_.data(), sizeof item_);
  rest_.remove_prefix(sizeof item_);
  const std::size_t bytes = has_payload(item_.kind) ? item_.bytes : 0;
  if (padded(bytes) > rest_.size()) return false;
  payload_ = rest_.substr(0, bytes);
  rest_.remove_prefix(padded(bytes));
  return true;
}

}  // namespace tutti
