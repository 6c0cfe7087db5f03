#pragma once

// How workers that know nothing of each other exchange a few bytes and descriptors: used to join,
// and to make groups and arenas. Everything after that goes through shared memory.
//
// The launcher serves it over inherited socket pairs (job/rendezvous/socket_rendezvous.h); ranks
// that are threads use ThreadRendezvous (job/rendezvous/thread_rendezvous.h).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/file_descriptor.h"
#include "job/wire/rank_set.h"

namespace tutti {

struct Parcel {
  std::string bytes;
  std::vector<FileDescriptor> descriptors;
};

/// When a store has to leave for other hosts. What may wait leaves with what comes next, or some
/// milliseconds later (kHostCompany), so that hosts exchange few messages.
struct Haste {
  enum Kind : std::uint32_t {
    at_once = 0,
    with_next,  ///< nobody looks at it before a later store of this worker has come
    with_all    ///< nobody looks at it before all `members` have stored theirs of the round
  };
  Kind kind = at_once;
  std::uint64_t round = 0;  ///< its number, the same for all members and for no other round
  RankSet members = {};     ///< job ranks
};

/// Whether to keep waiting.
using Patience = std::function<bool()>;
inline constexpr std::chrono::milliseconds kPatienceInterval{100};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Every worker of `ranks` (job ranks, ascending, the caller among them) gives a parcel under the
  /// same tag and gets all of them, in the order of `ranks`. A tag is used once per set of ranks.
  /// Throws Timeout naming who has not come, PeerLost when one of `ranks` has ended before giving.
  /// `patience`, where given, is asked every kPatienceInterval while others are waited for: false
  /// ends the wait as the deadline does.
  virtual std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks,
                                         Parcel mine, Deadline deadline,
                                         const Patience& patience) = 0;
  std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks, Parcel mine,
                                 Deadline deadline) {
    return all_gather(tag, ranks, std::move(mine), deadline, {});
  }

  /// Reports that `rank` (a job rank) will never give again, because its connection may be held
  /// open by other processes. What it gave before counts; all_gather() then throws PeerLost where
  /// it is missing, on all who wait for it. Never throws.
  virtual void report_end(int rank) noexcept = 0;

  /// Tells the watcher of the workers that this one failed because of `culprit` (a job rank), so
  /// that the first cause is reported, not its echo. Never throws.
  virtual void blame(int culprit, const std::string& text) noexcept = 0;
  /// This worker, asked to end by a signal, first saves what it has: who started it gives it the
  /// time. Others are not told.
  virtual void note_saves() noexcept {}

  // In a job of several hosts, of which those that share no memory are reached through this:

  /// This worker holds the block, so that what workers of other hosts store there arrives. The
  /// first worker of a host that does so gives the memory.
  virtual void hold_block(std::uint64_t block, const FileDescriptor& file, std::size_t bytes);
  virtual void let_go_block(std::uint64_t block) noexcept;
  /// Makes the stores (job/hosts/stores.h) on all hosts, in the order of all that workers store.
  virtual void store(std::string message, const Haste& haste);
  /// False once nothing reaches other hosts any more.
  virtual bool reaches_hosts() const { return true; }
  /// Calls `told`, from a thread of its own, once nothing does; an empty one takes its place.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): where there are hosts, it is moved on.
  virtual void when_alone(std::function<void()> /*told*/) {}
};

}  // namespace tutti
