#pragma once

// The request to end for a thread that polls descriptors. It arrives even where the program has
// closed all descriptors that it does not know, as closefrom(3) does: then the thread finds out by
// looking, and nothing is written to a file of the program that has the number by now.
//
// Threads: any. Failure: IoError when it is made.

#include <sys/types.h>

#include <atomic>
#include <chrono>

#include "base/file_descriptor.h"

namespace tutti {

class StopRequest {
 public:
  /// The longest time to poll before raised() is looked at.
  static constexpr std::chrono::milliseconds kLook{500};

  /// `failure` begins the text of the IoError: "cannot watch the launcher".
  explicit StopRequest(const char* failure);

  /// To be polled for reading, beside what the thread waits for.
  int descriptor() const { return event_.get(); }
  void raise() noexcept;
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire); }
  /// False once the program has closed the descriptor: then it has closed others of Tutti, too, and
  /// their numbers may belong to files of the program.
  bool is_open() const noexcept;

 private:
  FileDescriptor event_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::atomic<bool> raised_{false};
};

}  // namespace tutti
