#include "job/hosts/host_memory.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "job/wire/frame.h"

namespace tutti {
namespace {

template <class Word>
std::atomic<Word>& word_at(std::byte* at) {
  return *std::launder(reinterpret_cast<std::atomic<Word>*>(at));
}

void store(std::byte* at, const StoreItem& item) {
  if (item.bytes == 4) {
    word_at<std::uint32_t>(at).store(static_cast<std::uint32_t>(item.value));
  } else {
    word_at<std::uint64_t>(at).store(item.value);
  }
}

bool exchange(std::byte* at, const StoreItem& item) {
  if (item.bytes == 4) {
    auto expected = static_cast<std::uint32_t>(item.expected);
    return word_at<std::uint32_t>(at).compare_exchange_strong(
        expected, static_cast<std::uint32_t>(item.value));
  }
  auto expected = item.expected;
  return word_at<std::uint64_t>(at).compare_exchange_strong(expected, item.value);
}

bool is_atomic(const StoreItem& item) {
  return (item.bytes == 4 || item.bytes == 8) && item.to.offset % item.bytes == 0;
}

}  // namespace

void HostMemory::hold(int rank, std::uint64_t block, const FileDescriptor& file,
                      std::size_t bytes) {
  Block& here = blocks_[block];
  here.holders.insert(rank);
  here.had.insert(rank);
  if (!file || here.memory) return;
  here.memory = system_->map(file, bytes);
  here.bytes = bytes;
  if (block != kBoardBlock) return;
  if (is_cut_off_) mark_cut_off(*board(), kHubRank);
  for (const int gone : ended_.ranks()) mark_ended(*board(), board()->workers[gone]);
}

void HostMemory::let_go(int rank, std::uint64_t block) {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  found->second.holders -= {rank};
  if (found->second.holders.empty()) blocks_.erase(found);
}

void HostMemory::end(int rank, bool cut_off) {
  is_cut_off_ = is_cut_off_ || cut_off;
  if (ended_.contains(rank)) return;
  ended_.insert(rank);
  Board* const all = board();
  if (all != nullptr && is_cut_off_) mark_cut_off(*all, kHubRank);
  if (all != nullptr) mark_ended(*all, all->workers[static_cast<std::size_t>(rank)]);
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto next = std::next(block);
    auto& [memory, bytes, holders, had] = block->second;
    holders -= {rank};
    if (holders.empty() && (workers_ - ended_ - had).empty()) blocks_.erase(block);
    block = next;
  }
}

void HostMemory::apply(std::string_view message, bool is_own) {
  StoreReader reader(message);
  while (reader.next() && apply(reader.item(), reader.payload(), is_own)) {
    has_stored_ = has_stored_ || reader.item().kind != StoreItem::early_bytes;
  }
}

void HostMemory::wake() {
  if (!std::exchange(has_stored_, false)) return;
  if (Board* const all = board()) announce(*all);
}

/// False where the rest of the message does not count.
bool HostMemory::apply(const StoreItem& item, std::string_view payload, bool is_own) {
  switch (item.kind) {
    case StoreItem::data: {
      if (is_own) return true;
      std::byte* const at = address(item.to, payload.size());
      if (at != nullptr) std::memcpy(at, payload.data(), payload.size());
      return true;
    }
    case StoreItem::early_bytes: {
      std::byte* const at = is_own ? nullptr : address(item.to, 8 + item.value);
      if (at == nullptr || item.value % 8 != 0 || item.to.offset % 8 != 0) return true;
      write_bytes(word_at<std::uint32_t>(at),
                  std::launder(reinterpret_cast<std::atomic<std::uint64_t>*>(at + 8)), item.value,
                  payload);
      return true;
    }
    case StoreItem::early_word:
    case StoreItem::word: {
      if (is_own && item.kind == StoreItem::early_word) return true;
      std::byte* const at = is_atomic(item) ? address(item.to, item.bytes) : nullptr;
      if (at != nullptr) store(at, item);
      return true;
    }
    case StoreItem::early_time: {
      std::byte* const at = is_own || !is_atomic(item) ? nullptr : address(item.to, item.bytes);
      if (at == nullptr) return true;
      StoreItem here = item;
      if (item.value != 0) {
        here.value += static_cast<std::uint64_t>(system_->now().time_since_epoch().count());
      }
      store(at, here);
      return true;
    }
    case StoreItem::exchange: {
      std::byte* const at = is_atomic(item) ? address(item.to, item.bytes) : nullptr;
      return at != nullptr && exchange(at, item);
    }
    default:
      return false;
  }
}

std::byte* HostMemory::address(BlockPlace place, std::size_t bytes) {
  const auto found = blocks_.find(place.block);
  if (found == blocks_.end() || !found->second.memory) return nullptr;
  const Block& block = found->second;
  if (place.offset > block.bytes || bytes > block.bytes - place.offset) return nullptr;
  return block.memory.get() + place.offset;
}

Board* HostMemory::board() {
  return reinterpret_cast<Board*>(address({kBoardBlock, 0}, sizeof(Board)));
}

}  // namespace tutti
