#pragma once

// The serving side of the rendezvous: `tutti run` has one, and so have tests that start processes.
// There each worker holds one end of a socket pair. Under another launcher rank 0 has one, and
// workers connect to it (host_rendezvous.h). No name appears in any file system. The broker
// gathers the parcels of a tag and hands all of them to each of its ranks. It learns of a worker's
// end by the socket's hang-up, or by another worker's report: another process may hold the socket.
//
// With several hosts there is a broker on each, and one of them is the hub (hosts/host_order.h):
// what workers give, and that they have ended, takes effect in one order on all hosts. A broker
// serves its own workers, keeps their descriptors to itself, and lives until all of them have
// ended.
//
// Threads: one thread inside, from the moment on when all worker ends are closed here, so that a
// launcher forks while it is single-threaded; public functions from any thread after that. Failure:
// a worker that sends invalid frames is treated as ended. When the broker's process may not open
// the descriptors that a worker sends, all workers get an Error that names the limit.

#include <memory>
#include <vector>

#include "base/file_descriptor.h"
#include "job/hosts/host_order.h"
#include "job/rendezvous/blame.h"

namespace tutti {

struct BrokerState;

class Broker {
 public:
  /// Makes the socket pairs for `size` workers.
  explicit Broker(int size);
  /// Serves `size` workers that connect to `listener`, a listening unix socket, from now on. Each
  /// says which rank it is; a connection of another user is closed.
  Broker(int size, FileDescriptor listener);
  /// The same for the workers of one of several hosts.
  explicit Broker(BrokerHosts hosts);
  Broker(BrokerHosts hosts, FileDescriptor listener);
  /// What has been answered is still sent, unless that takes longer than a second.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  /// The worker's end for `rank`: to be inherited by exactly one child process. Close-on-exec; the
  /// child clears that flag on its own end between fork and exec.
  int worker_end(int rank) const;
  /// Must be called once the child has its end, so that the child's death hangs up. After the last
  /// one the broker serves.
  void close_worker_end(int rank);
  /// Returns the worker's end, in a child that was made by fork without exec. Closes all other
  /// descriptors of this broker there, which cannot be used for anything else then.
  FileDescriptor take_worker_end(int rank);
  /// True once a worker has begun to join a job of several, which is its first message. Messages
  /// that workers sent before they ended count.
  bool any_joining() const;
  /// The blames so far, in order of arrival, including those that workers sent before they ended.
  std::vector<Blame> blames() const;
  /// A worker of this host has said Rendezvous::note_saves().
  bool any_saves() const;
  /// What this broker has sent to those of other hosts.
  HostTraffic traffic() const;

 private:
  std::unique_ptr<BrokerState> state_;
};

}  // namespace tutti
