#include <exception>
#include <utility>

#include "base/log.h"
#include "base/timeline.h"
#include "comm/group_state.h"
#include "comm/local/local_collectives.h"
#include "job/job_state.h"
#include "tutti/group.h"

namespace tutti {

Work::Work(std::shared_ptr<GroupState> group, std::uint64_t sequence)
    : group_(std::move(group)), sequence_(sequence) {}

Work::Work(Work&& other) noexcept
    : group_(std::move(other.group_)), sequence_(std::exchange(other.sequence_, 0)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work old(std::move(*this));
    group_ = std::move(other.group_);
    sequence_ = std::exchange(other.sequence_, 0);
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
  group->collectives().wait(sequence_);
}

bool Work::done() { return !group_ || group_->collectives().test(sequence_); }

}  // namespace tutti
