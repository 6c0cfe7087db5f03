#include "job/rendezvous/gather_table.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "job/wire/frame.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {

std::vector<GatherOutcome> GatherTable::fail(Gather& gather, GatherOutcome failure) {
  gather.failed = true;
  gather.failure = std::move(failure);
  gather.parcels.clear();
  std::vector<GatherOutcome> told;
  for (const auto& [rank, request] : gather.waiting) {
    told.push_back(gather.failure);
    told.back().rank = rank;
    told.back().request = request;
  }
  gather.waiting.clear();
  return told;
}

void GatherTable::forget_if_over(const Key& key) {
  const auto at = gathers_.find(key);
  if (at != gathers_.end() && at->second.waiting.empty() &&
      (key.second - at->second.given - ended_).empty())
    gathers_.erase(at);
}

std::vector<GatherOutcome> GatherTable::give(int rank, std::uint64_t request,
                                             const std::string& tag, const RankSet& ranks,
                                             Parcel parcel) {
  const Key key{tag, ranks};
  Gather& gather = gathers_[key];
  gather.given.insert(rank);
  gather.waiting[rank] = request;
  std::vector<GatherOutcome> told;
  const RankSet gone = (ranks - gather.given) & ended_;
  if (gather.failed) {
    told = fail(gather, std::move(gather.failure));
  } else if (is_cut_off_) {
    told = fail(gather, cut_off_from(tag));
  } else if (!gone.empty()) {
    told =
        fail(gather, {.kind = GatherOutcome::Kind::lost,
                      .culprit = gone.first(),
                      .text = fmt::format("{} ended before coming to {}", ranks_text(gone), tag)});
  } else {
    gather.parcels[rank] = std::move(parcel);
    if (gather.given == ranks) {
      auto parcels = std::make_shared<std::vector<Parcel>>();
      for (auto& [from, given] : gather.parcels) parcels->push_back(std::move(given));
      for (const auto& [to, number] : gather.waiting)
        told.push_back({.rank = to, .request = number, .parcels = parcels});
      gather.waiting.clear();
    }
  }
  forget_if_over(key);
  return told;
}

std::vector<GatherOutcome> GatherTable::give_up(int rank, std::uint64_t request) {
  for (auto& [key, gather] : gathers_) {
    const auto mine = gather.waiting.find(rank);
    if (mine == gather.waiting.end() || mine->second != request) continue;
    const RankSet missing = key.second - gather.given;
    const RankSet there = gather.given;
    auto told =
        fail(gather, {.kind = GatherOutcome::Kind::timed_out,
                      .culprit = missing.first(),
                      .text = fmt::format("{} not come to {} when rank {} gave up waiting ({} "
                                          "there)",
                                          ranks_text(missing, "had", "had"), key.first, rank,
                                          ranks_text(there, "was", "were"))});
    forget_if_over(Key(key));
    return told;
  }
  return {};  // it was told in the meantime
}

GatherOutcome GatherTable::cut_off_from(const std::string& tag) {
  return {.kind = GatherOutcome::Kind::lost,
          .culprit = kHubRank,
          .text = fmt::format("rank {} ended or cannot be reached, through which this host reaches "
                              "the others, before all had come to {}",
                              kHubRank, tag)};
}

std::vector<GatherOutcome> GatherTable::end(int rank) {
  ended_.insert(rank);
  std::vector<GatherOutcome> told;
  std::vector<Key> keys;
  for (auto& [key, gather] : gathers_) {
    if (!key.second.contains(rank)) continue;
    keys.push_back(key);
    gather.waiting.erase(rank);
    if (gather.given.contains(rank) || gather.failed) continue;
    auto some =
        fail(gather, {.kind = GatherOutcome::Kind::lost,
                      .culprit = rank,
                      .text = fmt::format("rank {} ended before coming to {}", rank, key.first)});
    for (auto& outcome : some) told.push_back(std::move(outcome));
  }
  for (const Key& key : keys) forget_if_over(key);
  return told;
}

std::vector<GatherOutcome> GatherTable::cut_off() {
  std::vector<GatherOutcome> told;
  if (std::exchange(is_cut_off_, true)) return told;
  for (auto gather = gathers_.begin(); gather != gathers_.end();) {
    const auto next = std::next(gather);
    const Key key = gather->first;
    if (!gather->second.failed && gather->second.given != key.second) {
      for (auto& outcome : fail(gather->second, cut_off_from(key.first)))
        told.push_back(std::move(outcome));
    }
    forget_if_over(key);
    gather = next;
  }
  return told;
}

void throw_failure(const GatherOutcome& failure) {
  TUTTI_CHECK(failure.kind != GatherOutcome::Kind::complete, "a complete gather is no failure");
  if (failure.kind == GatherOutcome::Kind::lost) throw PeerLost(failure.culprit, failure.text);
  throw Timeout(failure.text);
}

}  // namespace tutti
