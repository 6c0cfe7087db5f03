#pragma once

// The logic of a rendezvous without communication: the parcels that ranks gave under each tag, and
// the outcome for each rank. Broker serves it over sockets, ThreadRendezvous between threads.
//
// A gather is complete when all of its ranks have given. It fails, for all of them and with one
// text, when one of them abandons it or has ended before giving; a worker that comes later fails at
// once. After all have come, the tag is free again.
//
// Threads: one at a time. Failure: none; what went wrong is an outcome.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/wire/rank_set.h"
#include "job/wire/rendezvous.h"

namespace tutti {

/// The outcome of one rank's request.
struct GatherOutcome {
  enum class Kind : std::uint8_t { complete, timed_out, lost };
  int rank = 0;
  std::uint64_t request = 0;
  Kind kind = Kind::complete;
  int culprit = -1;       ///< lost: who ended; timed_out: the first that had not come
  std::string text = {};  ///< empty when complete
  /// The parcels of a complete gather, by rank, ascending; shared by all outcomes.
  std::shared_ptr<const std::vector<Parcel>> parcels = {};
};

class GatherTable {
 public:
  /// `rank` gives its parcel to the gather of (tag, ranks); `request` is its own number for that.
  std::vector<GatherOutcome> give(int rank, std::uint64_t request, const std::string& tag,
                                  const RankSet& ranks, Parcel parcel);
  /// `rank` waits no longer for its request.
  std::vector<GatherOutcome> give_up(int rank, std::uint64_t request);
  /// Notes that `rank` will never give again. May be called more than once.
  std::vector<GatherOutcome> end(int rank);
  /// Notes that the hub is lost, and with it all other hosts: from now on every gather is. Workers
  /// that are cut off would otherwise resume as a job of their own, beside that of the others. May
  /// be called more than once.
  std::vector<GatherOutcome> cut_off();

  /// Gathers that are under way or have been failed but not seen by all.
  std::size_t open() const { return gathers_.size(); }

 private:
  using Key = std::pair<std::string, RankSet>;
  struct Gather {
    RankSet given;                         ///< came with a parcel or were told of the failure
    std::map<int, std::uint64_t> waiting;  ///< rank → request, not told yet
    std::map<int, Parcel> parcels;         ///< by rank
    bool failed = false;
    GatherOutcome failure;  ///< without rank and request
  };
  std::vector<GatherOutcome> fail(Gather& gather, GatherOutcome failure);
  static GatherOutcome cut_off_from(const std::string& tag);
  /// Forgets a gather that every live rank has come to.
  void forget_if_over(const Key& key);

  std::map<Key, Gather> gathers_;
  RankSet ended_;
  bool is_cut_off_ = false;
};

/// Throws what a failed outcome stands for.
[[noreturn]] void throw_failure(const GatherOutcome& failure);

}  // namespace tutti
