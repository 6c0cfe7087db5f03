#include "job/life_watch.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/helper_thread.h"
#include "tutti/error.h"

namespace tutti {

LifeWatch::LifeWatch(Board& board, std::vector<FileDescriptor> lines, std::function<void(int)> tell)
    : board_(board),
      lines_(std::move(lines)),
      tell_(std::move(tell)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_)
    throw IoError(errno, fmt::format("cannot watch other workers: {}", std::strerror(errno)));
  thread_ = start_helper_thread("tutti-lives", [this] { watch(); });
}

LifeWatch::~LifeWatch() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void LifeWatch::watch() {
  std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
  // poll() passes over negative descriptors: absent lines, and those that have been seen.
  for (const FileDescriptor& line : lines_) polled.push_back({line.get(), POLLIN, 0});
  while (true) {
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // interrupted
    if (polled[0].revents != 0) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      polled[i].fd = -1;
      mark_ended(board_, board_.workers[i - 1]);
      if (tell_) tell_(static_cast<int>(i - 1));
    }
  }
}

}  // namespace tutti
