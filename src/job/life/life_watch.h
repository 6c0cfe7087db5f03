#pragma once

// Watches the life lines of the other workers and marks on the board who has ended.
//
// Threads: one inside.

#include <functional>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "job/life/stop_request.h"
#include "job/wire/board.h"

namespace tutti {

class LifeWatch {
 public:
  /// `lines[r]` turns readable when rank r has ended; an empty one is not watched. `board` outlives
  /// this. `tell` is also told who has.
  LifeWatch(Board& board, std::vector<FileDescriptor> lines,
            std::function<void(int rank)> tell = {});
  ~LifeWatch();
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

 private:
  void watch();

  Board& board_;
  std::vector<FileDescriptor> lines_;
  std::function<void(int rank)> tell_;
  StopRequest stop_;
  std::thread thread_;
};

}  // namespace tutti
