#include "chaos/chaos_case.h"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tutti::test::chaos {
namespace {

constexpr int kMostWorkers = 7;  ///< in all

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all-reduce";
    case Operation::all_gather:
      return "all-gather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::reduce_scatter:
      return "reduce-scatter";
    case Operation::exchange:
      return "exchange";
    case Operation::rooted:
      return "rooted";
    case Operation::ring:
      return "ring";
    case Operation::started:
      return "started";
    case Operation::halves:
      return "halves";
    case Operation::dense:
      return "dense";
    case Operation::large:
      return "large";
    case Operation::backward:
      return "backward";
    case Operation::rows:
      return "rows";
    case Operation::coded:
      return "coded";
    case Operation::averaged:
      return "averaged";
    case Operation::replicas:
      return "replicas";
  }
  return "";
}

/// Silence takes two seconds, so it is drawn seldom.
Fault draw_fault(Draw& draw) {
  const auto part = draw.below(100);
  if (part < 45) return Fault::none;
  if (part < 70) return Fault::worker_dies;
  if (part < 90) return Fault::host_dies;
  if (part < 93) return Fault::host_stops;
  if (part < 95) return Fault::cable;
  if (part < 97) return Fault::links_break;
  return Fault::host_pauses;
}

std::string text_of(const ChaosCase& one) {
  switch (one.fault) {
    case Fault::none:
      return "nothing fails";
    case Fault::worker_dies:
      return fmt::format("rank {} dies at {}", one.victim, one.moment);
    case Fault::host_dies:
      return fmt::format("the host of rank {} dies at {}", one.victim, one.moment);
    case Fault::host_stops:
      return fmt::format("the host of rank {} stops at {}", one.victim, one.moment);
    case Fault::cable:
      return fmt::format("the cable of the host of rank {} breaks at {}", one.victim, one.moment);
    case Fault::links_break:
      return fmt::format("the links of the host of rank {} break at {}", one.victim, one.moment);
    case Fault::host_pauses:
      return fmt::format("the host of rank {} pauses for {} ms at {}", one.victim,
                         one.pause.count(), one.moment);
  }
  return "";
}

}  // namespace

int ChaosCase::size() const { return std::accumulate(workers.begin(), workers.end(), 0); }

HostMap ChaosCase::map() const {
  std::vector<RankSet> hosts;
  int rank = 0;
  for (const int count : workers) {
    RankSet ranks;
    for (int k = 0; k < count; ++k) ranks.insert(rank++);
    hosts.push_back(ranks);
  }
  return HostMap::of(hosts);
}

std::uint64_t ChaosCase::seed_of(std::uint64_t name) const {
  return Draw(Draw(Draw(seed).next() + number).next() + name).next();
}

std::string ChaosCase::text() const {
  std::vector<std::string> names;
  for (const auto operation : operations) names.emplace_back(name_of(operation));
  const auto links =
      modelled ? fmt::format("links {} + {} us, {:.0f} MB/s{}, a step each {} us",
                             latency.count() / 1000, jitter.count() / 1000, bytes_per_second / 1e6,
                             lanes_overtake ? ", lanes overtake" : "", pace.count())
               : std::string("links at once");
  return fmt::format("{} workers; {}; {}; wires {} us, {} bytes; {}", fmt::join(workers, "+"),
                     fmt::join(names, ", "), links, wire_delay.count(), wire_piece, text_of(*this));
}

ChaosCase draw_case(std::uint64_t seed, std::uint64_t number) {
  ChaosCase one{.seed = seed, .number = number, .workers = {}, .operations = {}};
  Draw draw(one.seed_of(0));
  const auto hosts = 2 + draw.below(3);
  int left = kMostWorkers;
  for (std::uint64_t host = 0; host < hosts; ++host) {
    const int others = static_cast<int>(hosts - host) - 1;
    const int count = std::min(left - others, 1 + static_cast<int>(draw.below(3)));
    one.workers.push_back(count);
    left -= count;
  }
  static const std::vector<Operation> kCollectives = {
      Operation::all_reduce,     Operation::all_gather, Operation::broadcast,
      Operation::reduce_scatter, Operation::exchange,   Operation::rooted,
      Operation::ring,           Operation::started,    Operation::halves};
  static const std::vector<Operation> kSteps = {Operation::dense,    Operation::backward,
                                                Operation::rows,     Operation::coded,
                                                Operation::averaged, Operation::replicas};
  const auto count = 2 + draw.below(3);
  for (std::uint64_t k = 0; k < count; ++k) {
    one.operations.push_back(draw.one_in(3) ? draw.of(kCollectives) : draw.of(kSteps));
  }
  if (draw.one_in(20)) one.operations.front() = Operation::large;
  one.fault = draw_fault(draw);
  one.victim = static_cast<int>(draw.below(static_cast<std::uint64_t>(one.size())));
  one.moment = draw.below(draw.of<std::uint64_t>({10, 40, 150, 400}));
  one.pause = std::chrono::milliseconds(50 + draw.below(500));
  one.modelled = !draw.one_in(6);
  one.latency = std::chrono::microseconds(draw.below(1000));
  one.jitter = std::chrono::microseconds(draw.below(4000));
  one.bytes_per_second = draw.of<double>({0, 1e6, 1e8, 1e10});
  one.lanes_overtake = !draw.one_in(4);
  one.pace = std::chrono::microseconds(draw.of<int>({0, 20, 200, 800}));
  one.wire_delay = std::chrono::microseconds(draw.of<int>({0, 50, 500, 3000}));
  one.wire_piece = draw.of<std::size_t>({1000, 65536, 65536});
  return one;
}

}  // namespace tutti::test::chaos
