#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "run/pipeline/pipeline_walk.h"

namespace tutti {
namespace {

/// A compute of one worker, or a transfer, which both of its workers take part in.
struct Event {
  double at = 0;
  bool computes = false;
  double there = 0;  ///< of a transfer: when its contents are
  StageAction action = {};
  int from = 0;  ///< worker that computes, or sends
  int to = 0;
};

bool is_before(const Event& one, const Event& other) {
  const auto key = [](const Event& event) {
    return std::tuple(event.at, event.computes, event.there, event.action.stage,
                      event.action.micro_batch, event.action.work);
  };
  return key(one) < key(other);
}

struct Moment {
  double start = 0;
  double end = 0;
  double next = std::numeric_limits<double>::infinity();  ///< start of its worker's next compute
};

// All computes and transfers of all workers in one order. Nobody who follows it waits for ever: of
// what is not done yet, take the first. Those who take part in it have done all that they have
// before it, so they have called it, and what it needs comes before it in the order.
//
// Computes stand where they start with unit times. A transfer stands as late as it can, so that a
// receive delays nothing else: before the compute that needs it, and before the next compute of its
// sender, which a send that waits for its receive would hold up.
std::vector<Event> events_of(const PipelineSchedule& schedule) {
  const auto walk = walk_in_units(schedule);
  std::vector<Event> events;
  std::map<std::tuple<bool, int, int>, std::pair<StageAction, Moment>> producers;
  const auto key_of = [](const StageAction& action) {
    return std::tuple(action.work == StageWork::forward, action.stage, action.micro_batch);
  };
  for (int w = 0; w < schedule.workers(); ++w) {
    const auto& actions = schedule.actions(w);
    const auto& times = walk.times[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      events.push_back({times[i].start, true, 0, actions[i], w, w});
      if (actions[i].work == StageWork::backward_weight) continue;
      Moment moment{.start = times[i].start, .end = times[i].end};
      if (i + 1 < actions.size()) moment.next = times[i + 1].start;
      producers[key_of(actions[i])] = {actions[i], moment};
    }
  }
  const auto computes = events.size();
  for (std::size_t i = 0; i < computes; ++i) {
    const auto need = need_of(events[i].action, schedule.stages());
    if (!need || schedule.worker_of(need->stage) == events[i].to) continue;
    const auto& [action, moment] = producers.at(key_of(*need));
    events.push_back({std::min(events[i].at, moment.next), false, moment.end, action,
                      schedule.worker_of(need->stage), events[i].to});
  }
  std::ranges::sort(events, is_before);
  return events;
}

}  // namespace

std::vector<PipelineCall> calls_of(const PipelineSchedule& schedule, int worker) {
  using Kind = PipelineCall::Kind;
  std::vector<PipelineCall> calls;
  calls.reserve(schedule.actions(worker).size());
  for (const auto& event : events_of(schedule)) {
    const bool is_activation = event.action.work == StageWork::forward;
    if (event.computes) {
      if (event.from == worker) calls.push_back({Kind::compute, event.action, -1});
    } else if (event.from == worker) {
      calls.push_back(
          {is_activation ? Kind::send_activation : Kind::send_gradient, event.action, event.to});
    } else if (event.to == worker) {
      calls.push_back({is_activation ? Kind::receive_activation : Kind::receive_gradient,
                       event.action, event.from});
    }
  }
  return calls;
}

}  // namespace tutti
