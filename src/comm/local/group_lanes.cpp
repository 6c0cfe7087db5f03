#include "comm/local/group_lanes.h"

#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/call_record.h"
#include "tutti/error.h"

namespace tutti {

/// Keeps what was started on a lane from moving while a call is made there. The other lanes move on
/// while this thread waits: all are then moved by one thread, whoever has started what is on them.
class GroupLanes::InUse {
 public:
  InUse(const GroupLanes& group, LocalCollectives& lane) : lane_(lane) {
    for (const auto& each : group.lanes_) {
      if (each.get() == &lane) {
        each->leave_background();
      } else {
        each->move_to_this_thread();
      }
    }
  }
  ~InUse() { lane_.enter_background(); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  LocalCollectives& lane_;
};

GroupLanes::GroupLanes(JobState& job, LocalGroup group)
    : members_(job, std::move(group)), under_way_(members_.group.lanes, members_.group.rank) {
  for (int lane = 0; lane < members_.group.lanes; ++lane) {
    lanes_.push_back(std::make_unique<LocalCollectives>(members_, lane));
    members_.lanes.push_back(lanes_.back().get());
  }
}

std::uint64_t GroupLanes::start(const Operation& operation) {
  members_.job.require_own();
  const std::uint64_t call = started_ + 1;
  LocalCollectives& lane = *lanes_[lane_of(call)];
  if (const auto clash = under_way_.clash_of(operation, lane_of(call), sequence_of(call)))
      [[unlikely]] {
    refuse(operation, *clash);
  }
  const InUse use(*this, lane);
  const std::uint64_t sequence = lane.start(operation);
  TUTTI_CHECK(sequence == sequence_of(call), "operation {} of a lane is call {}", sequence, call);
  under_way_.add(operation, lane_of(call), sequence);
  if (operation.original.data != nullptr) {
    under_way_.lend(operation.original, call, lane.what(sequence));
  }
  return started_ = call;
}

void GroupLanes::refuse(const Operation& operation, const CallsUnderWay::Clash& clash) {
  check();  // of a group that has ended no call is under way
  CallRecord record;
  write_record(record, operation);
  const auto verb = [](bool writes) { return writes ? "writes" : "reads"; };
  throw InvalidArgument(fmt::format(
      "{}, call {} of group \"{}\", {} memory that a call under way {}: {}; wait for "
      "that one first",
      describe(record, members_.members.size), started_ + 1, members_.group.name,
      verb(clash.new_one_writes), verb(clash.writes), lanes_[clash.lane]->what(clash.sequence)));
}

void GroupLanes::require_apart(const ConstView& original) {
  const auto* const borrower = under_way_.borrower_of(original);
  if (borrower == nullptr) return;
  check();
  throw InvalidArgument(
      fmt::format("a collective of a tensor on a device, call {} of group \"{}\", touches memory "
                  "that a call under way writes: {}; wait for that one first",
                  started_ + 1, members_.group.name, *borrower));
}

bool GroupLanes::test(std::uint64_t call) {
  members_.job.require_own();
  TUTTI_CHECK(call <= started_, "call {} was not started", call);
  LocalCollectives& lane = *lanes_[lane_of(call)];
  const InUse use(*this, lane);
  if (lane.test(sequence_of(call))) {
    under_way_.complete(lane_of(call), sequence_of(call));
    return true;
  }
  for (const auto& other : lanes_) {
    if (other.get() != &lane) other->progress();
  }
  return false;
}

void GroupLanes::wait(std::uint64_t call) {
  members_.job.require_own();
  TUTTI_CHECK(call <= started_, "call {} was not started", call);
  LocalCollectives& lane = *lanes_[lane_of(call)];
  const InUse use(*this, lane);
  lane.wait(sequence_of(call));
  under_way_.complete(lane_of(call), sequence_of(call));
}

bool GroupLanes::test_up_to(std::uint64_t call) {
  const std::uint64_t lanes = lanes_.size();
  for (std::uint64_t last = call; last > 0 && last + lanes > call; --last) {
    if (!test(last)) return false;
  }
  return true;
}

void GroupLanes::wait_up_to(std::uint64_t call) {
  const std::uint64_t lanes = lanes_.size();
  for (std::uint64_t last = call; last > 0 && last + lanes > call; --last) wait(last);
}

void GroupLanes::check() {
  for (const auto& lane : lanes_) lane->check();
}

}  // namespace tutti
