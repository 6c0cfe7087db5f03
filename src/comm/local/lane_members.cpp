#include "comm/local/lane_members.h"

#include <iterator>
#include <vector>

#include <fmt/format.h>

namespace tutti {

/// Sequentially consistent, as is the state of the ending: ending.h relies on their order.
bool LaneMembers::has_reached(int member, Goal goal, std::uint64_t value) const {
  switch (goal) {
    case Goal::arrived:
      return control_.arrival(member, value).sequence.load(std::memory_order_seq_cst) == value;
    case Goal::staged:
      return control_.progress(member).staged.value.load(std::memory_order_seq_cst) >= value;
    case Goal::worked:
      return control_.progress(member).worked.value.load(std::memory_order_seq_cst) >= value;
    case Goal::finished:
      return control_.progress(member).finished.value.load(std::memory_order_seq_cst) >= value;
    case Goal::travelled:
      break;  // is no member's own part
  }
  return false;
}

bool LaneMembers::all_reached(Goal goal, std::uint64_t value) const {
  for (int member = 0; member < size(); ++member) {
    if (waits_for(member) && !has_reached(member, goal, value)) return false;
  }
  return true;
}

RankSet LaneMembers::behind(Goal goal, std::uint64_t value) const {
  RankSet late;
  for (int member = 0; member < size(); ++member) {
    if (member != members_.members.rank && !has_reached(member, goal, value)) {
      late.insert(members_.rank_of(member));
    }
  }
  return late;
}

bool LaneMembers::all_inlined(std::uint64_t sequence) const {
  for (int member = 0; member < size(); ++member) {
    if (control_.arrival(member, sequence).in.region != Location::kInlined) return false;
  }
  return true;
}

bool LaneMembers::agree(std::uint64_t sequence) const {
  const std::uint64_t hash = hash_of(members_.members.rank, sequence);
  for (int member = 0; member < size(); ++member) {
    if (hash_of(member, sequence) != hash) return false;
  }
  return true;
}

std::string LaneMembers::how_calls_differ(std::uint64_t sequence) const {
  std::string text;
  char separator = ':';
  for (int member = 0; member < size(); ++member) {
    const std::uint64_t hash = hash_of(member, sequence);
    std::vector<int> alike;
    bool listed = false;
    for (int other = 0; other < size(); ++other) {
      if (hash_of(other, sequence) != hash) continue;
      if (other < member) listed = true;
      alike.push_back(members_.rank_of(other));
    }
    if (listed) continue;
    fmt::format_to(std::back_inserter(text), "{} rank{} {}: {}", separator,
                   alike.size() > 1 ? "s" : "", rank_list(RankSet::of(alike)),
                   text_of(member, sequence));
    separator = ';';
  }
  return text;
}

std::string LaneMembers::how_pair_differs(std::uint64_t sequence,
                                          const Transfer::Pair& pair) const {
  const auto [giver, taker] = pair;
  const auto at = [&](int member, int place) {
    return control_.counts(member, sequence)[static_cast<std::size_t>(place)];
  };
  return fmt::format(", {}: rank {} gives rank {} {} elements, which takes {} from it",
                     text_of(giver, sequence), members_.rank_of(giver), members_.rank_of(taker),
                     at(giver, taker), at(taker, size() + giver));
}

}  // namespace tutti
