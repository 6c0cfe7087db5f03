#pragma once

// The serving side of the rendezvous: `tutti run` has one, and so have tests that start processes.
// Each worker holds one end of a socket pair; no name appears in any file system. The broker
// gathers the parcels of a tag and hands all of them to each of its ranks. It learns of a worker's
// end by the socket's hang-up, or by another worker's word: somebody else may hold the socket.
//
// Threads: one thread inside, from the moment on when all worker ends are closed here, so that a
// launcher forks while it is single-threaded; public functions from any thread after that.
// Failure: a worker that speaks nonsense is treated as ended. When the launcher may not open the
// descriptors that a worker sends, all workers are told, and get an Error that names the limit.

#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace tutti {

/// One worker told that it failed because of another.
struct Blame {
  int rank;
  int culprit;
  std::string text;
};

class Broker {
 public:
  /// Makes the socket pairs for `size` workers.
  explicit Broker(int size);
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  /// The worker's end for `rank`: to be inherited by exactly one child process. Close-on-exec; the
  /// child clears that flag on its own end between fork and exec.
  int worker_end(int rank) const;
  /// To be called once the child has it, so that the child's death hangs up. After the last one the
  /// broker serves.
  void close_worker_end(int rank);
  /// In a child made by fork alone: its own end. Closes all other descriptors of this broker there,
  /// which is then good for nothing else.
  FileDescriptor take_worker_end(int rank);
  /// True once a worker has begun to join a job of several, which is the first thing that it says.
  /// All that workers said before they ended counts.
  bool any_joining() const;
  /// What was blamed so far, in order of arrival, with everything that workers said before they
  /// ended.
  std::vector<Blame> blames() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
