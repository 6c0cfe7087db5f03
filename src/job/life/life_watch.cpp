#include "job/life/life_watch.h"

#include <poll.h>

#include "base/helper_thread.h"

namespace tutti {

LifeWatch::LifeWatch(Board& board, std::vector<FileDescriptor> lines, std::function<void(int)> tell)
    : board_(board),
      lines_(std::move(lines)),
      tell_(std::move(tell)),
      stop_("cannot watch other workers") {
  thread_ = start_helper_thread("tutti-lives", [this] { watch(); });
}

LifeWatch::~LifeWatch() {
  stop_.raise();
  thread_.join();
}

void LifeWatch::watch() {
  std::vector<pollfd> polled{{stop_.descriptor(), POLLIN, 0}};
  // poll() passes over negative descriptors: absent lines, and those that have been seen.
  for (const FileDescriptor& line : lines_) polled.push_back({line.get(), POLLIN, 0});
  while (true) {
    const int found = ::poll(polled.data(), polled.size(), StopRequest::kLook.count());
    // Once the program has closed the descriptors, they tell nothing of workers.
    if (stop_.raised() || !stop_.is_open()) return;
    if (found <= 0) continue;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      polled[i].fd = -1;
      mark_ended(board_, board_.workers[i - 1]);
      if (tell_) tell_(static_cast<int>(i - 1));
    }
  }
}

}  // namespace tutti
