#include "torch/sums/watched_wait.h"

#include <fmt/format.h>

#include <thread>

#include "comm/group_state.h"
#include "job/wait.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kWatchYields = 200;
constexpr std::chrono::microseconds kWatchSleep{50};
constexpr std::chrono::milliseconds kWatchInterval{10};

}  // namespace

void await_watched(const Group& group, const std::function<bool()>& ready,
                   const std::function<std::string()>& what,
                   std::optional<std::chrono::milliseconds> deadline) {
  auto& job = group.state()->job();
  const auto& members = group.state()->members();
  const auto began = job.system().now();
  const auto until = job.deadline(deadline);
  WaitWatch watch(job,
                  {.missing = [&] { return members; },
                   .members = members,
                   .what = what,
                   .check = {},
                   .deadline = until},
                  began);
  auto looked = began;
  for (int round = 0; !ready(); ++round) {
    if (round < kWatchYields) {
      std::this_thread::yield();
      continue;
    }
    const auto now = job.system().now();
    // Alone there is nobody whom the watch could name.
    if (group.size() == 1 && now >= until.at) throw Timeout(what() + " have not ended in time");
    if (now - looked >= kWatchInterval) {
      looked = now;
      watch.check();
    }
    std::this_thread::sleep_for(kWatchSleep);
  }
}

}  // namespace tutti
