#pragma once

// What a Broker consists of.
//
// Threads: the broker's own and callers of its public functions, under `mutex`.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

#include "base/file_descriptor.h"
#include "job/hosts/host_memory.h"
#include "job/hosts/host_order.h"
#include "job/life/stop_request.h"
#include "job/rendezvous/blame.h"
#include "job/rendezvous/gather_table.h"
#include "job/wire/frame.h"
#include "job/wire/rank_set.h"

namespace tutti {

struct BrokerState {
  explicit BrokerState(BrokerHosts hosts)
      : memory(hosts.system, hosts.map.ranks_of(hosts.here)),
        order(std::move(hosts), [this](Frame frame) { obey_ordered(std::move(frame)); }) {}

  struct Line {
    FileDescriptor socket;  ///< empty once the worker has ended
    FileDescriptor worker_end;
    FrameReader reader;
    FrameWriter writer;
    bool crowded = false;
    bool came = false;  ///< where workers connect: one of this rank has
  };

  std::mutex mutex;
  std::vector<Line> lines;      ///< by job rank; those of workers on other hosts stay empty
  FileDescriptor listener;      ///< empty where workers have inherited their sockets
  std::vector<Line> strangers;  ///< connected, and have not said who they are
  HostMemory memory;
  HostOrder order;
  GatherTable table;
  /// What came with a parcel of a worker of this host, by rank and request, until it is in order.
  std::map<std::pair<int, std::uint64_t>, std::vector<FileDescriptor>> kept;
  std::vector<Blame> blames;
  RankSet reported;    ///< said to have ended by another, and not yet believed
  std::string broken;  ///< why no descriptors can be passed on any more
  bool any_gave = false;
  bool any_saves = false;  ///< a worker of this host has said Rendezvous::note_saves()
  std::unique_ptr<StopRequest> stop;
  bool stopping = false;
  std::thread thread;

  Line& line(int rank) { return lines[static_cast<std::size_t>(rank)]; }
  void start();
  void run();
  std::vector<pollfd> polled(int& timeout_ms) const;
  void serve();
  void accept_strangers();
  bool introduce(Line& stranger);
  bool is_through() const;
  void answer_last();
  bool hear(int rank);
  bool is_here(int rank) const { return order.map().host_of(rank) == order.here(); }
  bool obey(int rank, Frame frame);
  void submit(int rank, Frame frame);
  void obey_ordered(Frame frame);
  void tell(std::vector<GatherOutcome> outcomes);
  void send(int rank);
  void end(int rank);
  void tell_end(int rank);
  void believe_reports();
  void break_down();
};

}  // namespace tutti
