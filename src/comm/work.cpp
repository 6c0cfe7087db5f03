#include <exception>
#include <utility>

#include "base/log.h"
#include "base/timeline.h"
#include "comm/group_state.h"
#include "comm/local/group_lanes.h"
#include "job/job_state.h"
#include "tutti/group.h"

namespace tutti {

Work::Work(std::shared_ptr<GroupState> group, std::uint64_t call, bool after_all,
           std::function<void()> then)
    : group_(std::move(group)), call_(call), after_all_(after_all), then_(std::move(then)) {}

Work::Work(Work&& other) noexcept
    : group_(std::move(other.group_)),
      call_(std::exchange(other.call_, 0)),
      after_all_(other.after_all_),
      then_(std::move(other.then_)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work old(std::move(*this));
    group_ = std::move(other.group_);
    call_ = std::exchange(other.call_, 0);
    after_all_ = other.after_all_;
    then_ = std::move(other.then_);
  }
  return *this;
}

Work::~Work() {
  if (!group_ || !group_->job().is_own()) return;
  try {
    wait();
  } catch (const std::exception& e) {
    log().warn("a collective that nobody waited for failed: {}", e.what());
  }
}

void Work::wait() {
  if (!group_) return;
  const std::shared_ptr<GroupState> group = std::move(group_);
  const TimelineSpan span(group->job().timeline(), "wait for a started collective");
  const auto then = std::exchange(then_, nullptr);
  GroupLanes& collectives = group->collectives();
  after_all_ ? collectives.wait_up_to(call_) : collectives.wait(call_);
  if (then) collectives.give_back(call_);
  if (then) then();
}

bool Work::done() {
  if (!group_) return true;
  GroupLanes& collectives = group_->collectives();
  return after_all_ ? collectives.test_up_to(call_) : collectives.test(call_);
}

}  // namespace tutti
