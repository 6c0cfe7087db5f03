#pragma once

// Engines write to sockets without MSG_NOSIGNAL: a peer that has ended would end this process too,
// by SIGPIPE, where the program does not ignore that.
//
// Threads: acts on the calling thread alone, and on those that it starts meanwhile. Failure: none.

#include <csignal>

namespace tutti {

/// As long as it exists, writing to a closed connection is EPIPE and no signal.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() noexcept;
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;
  ~WithoutPipeSignal();

 private:
  sigset_t before_{};
  bool was_pending_ = false;
};

/// Threads that are started meanwhile take no signals, and count as helpers (base/helper_thread.h).
class WithoutSignals {
 public:
  WithoutSignals() noexcept;
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;
  ~WithoutSignals();

 private:
  sigset_t before_{};
};

}  // namespace tutti
