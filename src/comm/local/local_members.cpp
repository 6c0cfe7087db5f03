// Creation of a local group.

#include "comm/local/local_members.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "job/gather.h"
#include "job/wire/rank_set.h"
#include "kernels/hash.h"
#include "memory/memory_need.h"

namespace tutti {
namespace {

std::string make_tag(JobState& job, const LocalGroup& group) {
  const auto tag = [&](const std::string& which) {
    return fmt::format("group \"{}\"{} of ranks {}", group.name, which,
                       rank_list(RankSet::of(group.ranks)));
  };
  const std::uint64_t made_before = job.next_number(tag(""));
  return tag(made_before == 0 ? "" : fmt::format(" number {}", made_before + 1));
}

/// The number of lanes, then why a member has no memory.
std::string announced(int lanes, const std::string& failure) {
  return static_cast<char>(lanes) + failure;
}

int lanes_in(const Parcel& parcel) { return static_cast<unsigned char>(parcel.bytes.at(0)); }

/// Whether there is no second round in which a member could report this.
bool ends_for_all(const Error& error) {
  return dynamic_cast<const PeerLost*>(&error) != nullptr ||
         dynamic_cast<const Timeout*>(&error) != nullptr ||
         dynamic_cast<const Mismatch*>(&error) != nullptr ||
         dynamic_cast<const PeerFailed*>(&error) != nullptr;
}

/// Alike on all members.
void compare_lanes(const LocalGroup& group, const std::vector<Parcel>& parcels) {
  for (std::size_t member = 1; member < parcels.size(); ++member) {
    const int first = lanes_in(parcels[0]);
    const int other = lanes_in(parcels[member]);
    if (first == other) continue;
    throw Mismatch(fmt::format(
        "members of group \"{}\" disagree on its lanes (GroupOptions::lanes): rank {}: {}; rank "
        "{}: {}",
        group.name, group.ranks[0], first, group.ranks[member], other));
  }
}

}  // namespace

LocalMembers::LocalMembers(JobState& job, LocalGroup of)
    : job(job),
      group(std::move(of)),
      layout(HostLayout::of(group.host_of, group.rank)),
      members{group.rank, static_cast<int>(group.ranks.size()),
              FoldProgram::canonical(static_cast<int>(group.ranks.size())),
              layout.spans_hosts() ? &layout : nullptr},
      ranks(RankSet::of(group.ranks)),
      spans_hosts(layout.spans_hosts()),
      tag(make_tag(job, group)),
      control(join_members()) {}

ControlArena LocalMembers::join_members() {
  job.require_hosts("the making of " + tag);
  const std::size_t bytes = ControlArena::bytes(members.size, group.lanes);
  const std::string refusal = refuse_memory(
      job.system(), {.bytes_per_worker = bytes,
                     .workers = 1,
                     .what = fmt::format("the control memory of group \"{}\"", group.name)});
  if (members.size == 1) {
    if (!refusal.empty()) throw OutOfMemory(refusal);
    return {Arena::create(job.system(), "group control", bytes), 1, group.lanes};
  }
  // Two rounds: in the second all say whether they have the memory.
  std::string failure;
  try {
    Arena made;
    try {
      made = exchange_control(refusal, failure);
    } catch (const Error& e) {
      if (ends_for_all(e)) throw;
      failure = fmt::format("rank {} could not receive the control memory of group \"{}\": {}",
                            job.identity().rank, group.name, e.what());
    }
    for (const Parcel& other : gather(job, "the second round of making " + tag, group.ranks,
                                      Parcel{failure, {}}, group.check)) {
      if (!other.bytes.empty()) throw OutOfMemory(other.bytes);
    }
    made.close_descriptor();
    return {std::move(made), members.size, group.lanes};
  } catch (const Error& e) {
    // A member that cannot receive has reported its own failure to the others all the same.
    if (!ends_for_all(e) && !failure.empty()) throw OutOfMemory(failure);
    throw;
  }
}

/// The first member of a host makes its memory, every member has a say on whether it fits. Why this
/// one does not have it then is left in `failure`.
Arena LocalMembers::exchange_control(const std::string& refusal, std::string& failure) {
  const std::size_t bytes = ControlArena::bytes(members.size, group.lanes);
  const auto of = [&](const char* what, const char* why) {
    return fmt::format("rank {} could not {} the control memory of group \"{}\": {}",
                       job.identity().rank, what, group.name, why);
  };
  Parcel parcel{announced(group.lanes, refusal), {}};
  Arena made;
  const int maker = first_here();
  if (members.rank == maker && refusal.empty()) {
    try {
      made = Arena::create(job.system(), "group control", bytes);
      held_control = hold_block(tag, made, true);
      parcel.descriptors.push_back(made.descriptor());
    } catch (const std::exception& e) {
      parcel.bytes = announced(group.lanes, of("make", e.what()));
    }
  }
  std::vector<Parcel> parcels =
      gather(job, "the making of " + tag, group.ranks, std::move(parcel), group.check);
  compare_lanes(group, parcels);
  for (const Parcel& other : parcels) {
    if (failure.empty()) failure = other.bytes.substr(1);
  }
  if (!failure.empty() || members.rank == maker) return made;
  try {
    auto& given = parcels[static_cast<std::size_t>(maker)].descriptors;
    TUTTI_CHECK(given.size() == 1, "no memory came with {}", tag);
    made = Arena::open(job.system(), std::move(given.front()), bytes);
    held_control = hold_block(tag, made, false);
  } catch (const Error& e) {
    failure = of("map", e.what());
  }
  return made;
}

std::shared_ptr<void> LocalMembers::hold_block(const std::string& name, const Arena& arena,
                                               bool gives) {
  if (!spans_hosts) return {};
  // The board's number is below all of these.
  const std::uint64_t number = digest(name) | (std::uint64_t{1} << 63);
  return job.hold_block(number, arena.data(), arena.bytes(),
                        gives ? arena.descriptor() : FileDescriptor());
}

}  // namespace tutti
