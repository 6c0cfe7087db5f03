#pragma once

// Every environment variable that Tutti reads, in one place. `tutti run` sets those of the first
// group; users may set the others. docs/environment.md is checked against kVariables by a test.
//
// Threads: read once into a value. Failure: a malformed number is InvalidArgument naming the
// variable.

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// What TUTTI_LANES is by default, and at most.
inline constexpr int kDefaultLanes = 1;
inline constexpr int kMaxLanes = 16;

class Environment {
 public:
  struct Variable {
    std::string_view name;
    std::string_view meaning;
  };

  /// Reads the process environment now.
  static Environment read();
  /// All variables that read() looks at.
  static std::span<const Variable> variables();

  // Set by `tutti run` for each worker.
  std::optional<int> rank;           ///< TUTTI_RANK: this worker, 0 … size-1
  std::optional<int> size;           ///< TUTTI_SIZE: number of workers
  std::optional<int> rendezvous_fd;  ///< TUTTI_RENDEZVOUS_FD: inherited socket to the launcher
  std::optional<int> threads;        ///< TUTTI_THREADS: intra-op threads of each worker
  std::optional<int> restart;        ///< TUTTI_RESTART: 0 in the first attempt
  std::vector<int> hosts;            ///< TUTTI_HOSTS: workers on each host, by rank; empty: one
  std::string run;                   ///< TUTTI_RUN: identity of the run, alike in all attempts

  // Set by users, or by options of `tutti run`.
  std::optional<std::chrono::milliseconds> deadline;  ///< TUTTI_DEADLINE: seconds a wait may last
  std::string profile;             ///< TUTTI_PROFILE: file for a Chrome-trace timeline
  std::string log_level = "info";  ///< TUTTI_LOG: debug, info, warn, error, off

  /// Where the hosts of a job meet: at the hub, the host of rank 0.
  struct Hub {
    std::string address;  ///< IPv4, IPv6 or a name; empty: as the launcher has it
    int port = 0;
  };
  std::optional<Hub> hub;  ///< TUTTI_HUB: "10.0.0.1:29600", "[::1]:29600", "name:29600", ":29600"
  std::string token;       ///< TUTTI_TOKEN: the secret that the hosts of a job share
  std::string interface;   ///< TUTTI_INTERFACE: what this host's sockets are bound to: "eth0"
  /// TUTTI_LINK: how gradients travel between hosts: auto, gloo, mpi, tcp
  std::string link = "auto";
  int lanes = kDefaultLanes;    ///< TUTTI_LANES: connections at once for each kind of message
  std::string mpi_library;      ///< TUTTI_MPI_LIBRARY: file of the library that calls MPI
  bool started_by_mpi = false;  ///< a launcher of MPI's processes has started this one

  /// Variables of libtorch, MKL and oneDNN that are set, by name: bits depend on them, so all
  /// workers must have the same. `tutti run --cpu` sets three of them.
  std::map<std::string, std::string> libraries;

  /// What another launcher says of the workers that it has started.
  struct Launcher {
    std::string name;                 ///< "torchrun", "mpirun", "mpiexec" or "srun"
    std::string rank_variable;        ///< set in workers, not in what has started them: "RANK"
    int rank = 0;                     ///< 0 … size-1
    int size = 2;                     ///< above 1
    std::optional<int> on_host = {};  ///< how many of them are on this host, if the launcher tells
    int restart = 0;                  ///< 0 in the first attempt
    std::string job = {};  ///< its name for what it was asked to start; empty if it has none
    std::optional<int> threads = {};  ///< OMP_NUM_THREADS, which torch follows
    // The launcher may tell these where it has started several hosts.
    std::optional<int> hosts = {};         ///< how many there are
    std::optional<int> host = {};          ///< which this is, 0 … hosts-1
    std::optional<int> rank_on_host = {};  ///< 0 … on_host-1
    std::vector<int> host_ranks = {};      ///< ascending: whose ranks are on this host; or empty
    std::string address = {};              ///< of the host of rank 0, or its name
    std::optional<int> port = {};          ///< at that address, the launcher's own
  };
  /// Absent when none, or one of a single process, has started this process. Where several have,
  /// one inside the other, the innermost as this order has it: torchrun, Open MPI, MPICH, Slurm.
  std::optional<Launcher> launcher;
};

}  // namespace tutti
