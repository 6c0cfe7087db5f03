#include "sync/step/audit_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/bytes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Address space only, as for all of the board: memory is used only where it is written.
constexpr std::size_t kSavedBytes = std::size_t{64} << 20;
constexpr std::size_t kPrintBytes = std::size_t{256} << 20;

}  // namespace

AuditPair audit_pair_of(std::int64_t turn, std::span<const ShardRange> shards) {
  std::vector<int> workers;
  for (std::size_t r = 0; r < shards.size(); ++r) {
    if (shards[r].count() > 0) workers.push_back(static_cast<int>(r));
  }
  const auto size = static_cast<std::int64_t>(shards.size());
  const auto count = static_cast<std::int64_t>(workers.size());
  // Every second worker, so that no pair has a worker in common with the one before; of an even
  // number of workers, the others the time after.
  const auto owner_at = (2 * turn + (count % 2 == 0 ? 2 * turn / count : 0)) % count;
  AuditPair pair;
  pair.owner = workers[static_cast<std::size_t>(owner_at)];
  if (count > 1) {
    pair.auditor = workers[static_cast<std::size_t>((owner_at + 1) % count)];
  } else {
    const auto away = size > 1 ? 1 + turn % (size - 1) : 0;
    pair.auditor = static_cast<int>((pair.owner + away) % size);
  }
  const auto& range = shards[static_cast<std::size_t>(pair.owner)];
  pair.shard = range.begin + turn / count % range.count();
  return pair;
}

std::vector<std::byte> pack(std::span<const ShardPrint> prints) {
  std::vector<std::byte> bytes;
  for (const auto& print : prints) {
    append(bytes, std::uint64_t{print.items.size()});
    append(bytes, std::uint64_t{print.loss.has_value()});
    append(bytes, print.loss.value_or(0));
    for (const auto& [what, hash] : print.items) {
      append(bytes, hash);
      append(bytes, std::uint64_t{what.size()});
      append_all(bytes, what);
    }
  }
  return bytes;
}

std::vector<ShardPrint> unpack_prints(std::span<const std::byte> bytes) {
  std::vector<ShardPrint> prints;
  for (ByteReader from{bytes}; !from.left.empty();) {
    auto& print = prints.emplace_back();
    const auto count = from.value<std::uint64_t>();
    const bool has_loss = from.value<std::uint64_t>() != 0;
    const auto loss = from.value<double>();
    if (has_loss) print.loss = loss;
    for (std::uint64_t k = 0; k < count; ++k) {
      const auto hash = from.value<std::uint64_t>();
      const auto length = from.value<std::uint64_t>();
      print.items.push_back({std::string(text_of(from.bytes(length))), hash});
    }
  }
  return prints;
}

std::string differences(const ShardPrint& owners, const ShardPrint& auditors) {
  std::unordered_map<std::string_view, std::uint64_t> others;
  for (const auto& item : auditors.items) others.emplace(item.what, item.hash);
  std::string first;
  std::size_t count = 0;
  const auto differs = [&](const std::string& what) {
    if (count++ == 0) first = what;
  };
  for (const auto& item : owners.items) {
    const auto other = others.extract(item.what);
    if (other.empty() || other.mapped() != item.hash) differs(item.what);
  }
  for (const auto& item : auditors.items) {
    if (others.contains(item.what)) differs(item.what);
  }
  if (count == 0) return "";
  auto text = "the " + first;
  if (count > 1) text += fmt::format(" and {} other thing{}", count - 1, count > 2 ? "s" : "");
  if (owners.loss && auditors.loss && *owners.loss != *auditors.loss) {
    text += fmt::format(" (loss {} and {})", *owners.loss, *auditors.loss);
  }
  return text;
}

AuditBoard::Part::Part(Sections& at)
    : header(at), saved(at, kSavedBytes), prints(at, kPrintBytes) {}

AuditBoard::AuditBoard(StepMemory& memory) : parts_(memory.add<Part>()) {}

bool AuditBoard::hand_over(std::span<const std::byte> saved) {
  const auto& to = parts_.mine();
  auto& mine = to.header.front();
  mine.fits = saved.size() <= to.saved.size() ? 1 : 0;
  mine.saved = mine.fits != 0 ? saved.size() : 0;
  std::copy_n(saved.begin(), mine.saved, to.saved.begin());
  parts_.memory().send({published(mine), {to.saved.data(), mine.saved}});
  return mine.fits != 0;
}

std::optional<std::span<const std::byte>> AuditBoard::handed_by(int rank) const {
  const auto& from = parts_.of(rank);
  const auto& other = from.header.front();
  if (other.fits == 0) return {};
  return from.saved.first(other.saved);
}

void AuditBoard::publish(std::span<const ShardPrint> prints) {
  const auto& to = parts_.mine();
  const auto packed = pack(prints);
  if (packed.size() > to.prints.size()) {
    throw InvalidArgument(fmt::format("the audit of a step takes {} bytes of names, {} are there",
                                      packed.size(), to.prints.size()));
  }
  std::ranges::copy(packed, to.prints.begin());
  to.header.front().prints = packed.size();
  parts_.memory().send({published(to.header.front()), {to.prints.data(), packed.size()}});
}

std::vector<ShardPrint> AuditBoard::of(int rank) const {
  const auto& from = parts_.of(rank);
  return unpack_prints(from.prints.first(from.header.front().prints));
}

}  // namespace tutti
