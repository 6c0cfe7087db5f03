#pragma once

// The memory of a group's calls that are under way: what one of them writes, no other may touch.
//
// A call counts as under way until this member has waited for it, or for a later one of its lane:
// not until it happens to be complete, so that what is refused does not depend on the moment. One
// that was started on the host's copy of memory of a device has that memory until the result is
// there, which is this call's own wait.
//
// Threads: one at a time. Failure: none.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/local/control_arena.h"
#include "comm/local/operation.h"

namespace tutti {

class CallsUnderWay {
 public:
  /// A call under way, and what it and a new one do with the same memory.
  struct Clash {
    std::size_t lane;
    std::uint64_t sequence;
    bool writes;
    bool new_one_writes;
  };

  /// `rank`: this member's.
  CallsUnderWay(int lanes, int rank) : rank_(rank), lanes_(static_cast<std::size_t>(lanes)) {}

  /// The first call whose memory a new operation, going to be the lane's `sequence`, may not touch.
  /// Makes room for it.
  std::optional<Clash> clash_of(const Operation& operation, std::size_t lane,
                                std::uint64_t sequence);
  void add(const Operation& operation, std::size_t lane, std::uint64_t sequence);
  /// `call` has this memory of a device until give_back(). `what` describes it.
  void lend(const ConstView& original, std::uint64_t call, std::string what);
  void give_back(std::uint64_t call) { lent_.erase(call); }
  /// What the call is that has some of this memory of a device; null if there is none.
  const std::string* borrower_of(const ConstView& memory) const;
  /// The lane's operations up to this one are complete.
  void complete(std::size_t lane, std::uint64_t sequence);

 private:
  struct Bytes {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    /// Defined for memory of two arrays, too.
    bool overlap(const Bytes& other) const {
      const std::less<const std::byte*> before;
      return before(begin, other.end) && before(other.begin, end);
    }
  };
  struct Memory {
    Bytes read, written;
  };
  struct Lane {
    std::uint64_t started = 0;
    std::uint64_t completed = 0;
    std::array<Memory, kRing> memory;  ///< by sequence
  };
  static Bytes bytes_of(const ConstView& span);
  Memory memory_of(const Operation& operation) const;

  struct Lent {
    Bytes bytes;
    std::string what;
  };

  int rank_;
  std::vector<Lane> lanes_;
  std::map<std::uint64_t, Lent> lent_;  ///< by call
};

}  // namespace tutti
