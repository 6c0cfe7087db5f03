#include "comm/local/calls_under_way.h"

#include <algorithm>
#include <utility>

namespace tutti {

CallsUnderWay::Bytes CallsUnderWay::bytes_of(const ConstView& span) {
  if (span.count == 0) return {};
  const auto* const begin = static_cast<const std::byte*>(span.data);
  return {begin, begin + span.bytes()};
}

CallsUnderWay::Memory CallsUnderWay::memory_of(const Operation& operation) const {
  if (operation.original.data != nullptr) return {};  // the host's copy is nobody else's
  const auto kind = operation.kind;
  const bool is_root = operation.root == rank_;
  const bool gives = !is_from_root(kind) || is_root;
  const bool takes = is_to_root(kind)                   ? is_root
                     : kind == OperationKind::broadcast ? !is_root
                     : kind == OperationKind::message   ? !is_root
                                                        : true;
  return {.read = gives ? bytes_of(operation.in) : Bytes{},
          .written = takes ? bytes_of(operation.out) : Bytes{}};
}

std::optional<CallsUnderWay::Clash> CallsUnderWay::clash_of(const Operation& operation,
                                                            std::size_t lane,
                                                            std::uint64_t sequence) {
  // A full ring completes its oldest first.
  if (sequence >= kRing) complete(lane, sequence - (kRing - 1));
  std::optional<Memory> mine;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const Lane& other = lanes_[l];
    for (auto s = other.completed + 1; s <= other.started; ++s) {
      if (!mine) mine = memory_of(operation);
      const Memory& its = other.memory[s % kRing];
      const bool writes = its.written.overlap(mine->written);
      if (!writes && !its.written.overlap(mine->read) && !its.read.overlap(mine->written)) continue;
      return Clash{l, s, writes || its.written.overlap(mine->read),
                   writes || its.read.overlap(mine->written)};
    }
  }
  return {};
}

void CallsUnderWay::lend(const ConstView& original, std::uint64_t call, std::string what) {
  lent_[call] = {bytes_of(original), std::move(what)};
}

const std::string* CallsUnderWay::borrower_of(const ConstView& memory) const {
  const Bytes bytes = bytes_of(memory);
  for (const auto& [call, lent] : lent_) {
    if (lent.bytes.overlap(bytes)) return &lent.what;
  }
  return nullptr;
}

void CallsUnderWay::add(const Operation& operation, std::size_t lane, std::uint64_t sequence) {
  lanes_[lane].started = sequence;
  lanes_[lane].memory[sequence % kRing] = memory_of(operation);
}

void CallsUnderWay::complete(std::size_t lane, std::uint64_t sequence) {
  lanes_[lane].completed = std::max(lanes_[lane].completed, sequence);
}

}  // namespace tutti
