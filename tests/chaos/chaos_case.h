#pragma once

// What one seeded run under chaos is: hosts and workers, delays, what the workers do, and what
// fails in the midst of it. All of it is drawn from (seed, number) alone.
//
// Threads: values. Failure: none.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "job/hosts/host_map.h"

namespace tutti::test::chaos {

/// SplitMix64 (Steele, Lea, Flood 2014).
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    auto x = state_ += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  T of(const std::vector<T>& options) {
    return options[below(options.size())];
  }

 private:
  std::uint64_t state_;
};

enum class Fault {
  none,
  worker_dies,
  host_dies,    ///< all its workers, and its connections
  host_stops,   ///< nothing of it runs any more, and nobody is told
  cable,        ///< nothing passes to it or from it, and nobody is told; its workers live
  links_break,  ///< connections of gradients; its workers live, and the job's connection
  host_pauses,  ///< for less than the silence by which a host is lost
};

enum class Operation {
  all_reduce,
  all_gather,
  broadcast,
  reduce_scatter,
  exchange,  ///< all to all, of unequal parts
  rooted,    ///< from all to one, and back
  ring,      ///< each sends to the next
  started,
  halves,  ///< of the workers form groups of their own
  dense,
  large,     ///< more pieces of a sum of hosts than are under way at once
  backward,  ///< buckets leave while a backward runs; steps are dropped
  rows,
  coded,
  averaged,
  replicas,
};

struct ChaosCase {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
  std::vector<int> workers;  ///< of each host
  std::vector<Operation> operations;
  Fault fault = Fault::none;
  int victim = 0;            ///< a rank; of a host that fails the one that sets it off
  std::uint64_t moment = 0;  ///< the number of chances that it lets pass
  std::chrono::milliseconds pause{0};

  // Links: the model's time.
  bool modelled = true;
  std::chrono::nanoseconds latency{0};
  std::chrono::nanoseconds jitter{0};
  double bytes_per_second = 0;
  bool lanes_overtake = true;
  /// At most so long, in real time, between two events of the model.
  std::chrono::microseconds pace{0};
  /// At most so long a piece of the job's own connections is held up, and so large it is.
  std::chrono::microseconds wire_delay{0};
  std::size_t wire_piece = 65536;

  int size() const;
  HostMap map() const;
  int victim_host() const { return map().host_of(victim); }
  /// One line.
  std::string text() const;
  /// A seed of its own for each name.
  std::uint64_t seed_of(std::uint64_t name) const;
};

ChaosCase draw_case(std::uint64_t seed, std::uint64_t number);

}  // namespace tutti::test::chaos
