// Steps of more workers than one host may have, against the tree over all leaves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "support/many_workers.h"
#include "sync/gradient_oracle.h"
#include "sync/step/step_exchange.h"
#include "sync/whole_step.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

struct Step {
  Step(const std::vector<std::size_t>& counts, std::int64_t number, std::int64_t total) {
    double sum = 0;
    for (std::int64_t l = 0; l < total; ++l) {
      leaves.push_back(random_leaf(counts, number, l, 2));
      weights.push_back(static_cast<double>(1 + (l * 7 + number) % 4));
      sum += weights.back();
    }
    for (std::size_t p = 0; p < counts.size(); ++p) {
      expected.push_back(reduced(leaves, weights, p, sum));
    }
  }
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  Leaf expected;
};

void write_scope(StepExchange& exchange, const Step& step) {
  const auto& group = exchange.group();
  const auto total = static_cast<std::int64_t>(step.leaves.size());
  const auto [begin, end] = share_of(total, group.rank(), group.size());
  exchange.open_scope(end - begin);
  for (auto l = begin; l < end; ++l) {
    exchange.leaves().begin_leaf(step.weights[static_cast<std::size_t>(l)]);
    write_leaf(exchange, step.leaves[static_cast<std::size_t>(l)]);
    exchange.leaves().end_leaf();
  }
}

void expect_values(const StepExchange& exchange, const Leaf& expected) {
  for (std::size_t p = 0; p < expected.size(); ++p) {
    if (!expected[p]) continue;
    const auto bytes = expected[p]->size() * sizeof(float);
    ASSERT_EQ(std::memcmp(exchange.nodes().result(p), expected[p]->data(), bytes), 0)
        << "parameter " << p;
  }
}

/// Two steps of `total` leaves, dealt evenly, and one of one backward.
void expect_steps(int hosts, int each, std::int64_t total) {
  const std::vector<std::size_t> counts = {1, 63, 4097, 300};
  const Step first(counts, 1, total);
  const Step second(counts, 2, total);
  const Step last(counts, 3, hosts * each);
  run_thread_ranks(
      hosts * each,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        for (const Step* const step : {&first, &second}) {
          write_scope(exchange, *step);
          finish(exchange);
          expect_values(exchange, step->expected);
        }
        const auto rank = static_cast<std::size_t>(job.rank());
        exchange.open_one_backward(last.weights[rank]);
        write_leaf(exchange, last.leaves[rank]);
        finish(exchange);
        expect_values(exchange, last.expected);
      },
      many_workers(hosts, each));
}

TEST(ManyWorkersStep, OfTwoHostsHasTheTreesBytes) { expect_steps(2, 40, 95); }

TEST(ManyWorkersStep, OfNineHostsHasTheTreesBytes) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "too many threads for a sanitizer: a host that is silent for 1.5 s is lost";
#endif
  expect_steps(9, 8, 131);
}

// promise: clusters#several-hosts
TEST(ManyWorkersStep, OfSixteenHostsHasTheTreesBytes) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "too many threads for a sanitizer";
#endif
  expect_steps(16, 8, 200);
}

struct PerStep {
  double messages;  ///< of all brokers
  double most;      ///< that rounds allow, where workers are as late as they were
  double frames;
  double bytes;
  double ms;
};

/// What the brokers of these hosts exchange in a step of a Trainer's kind.
PerStep traffic_of(int hosts, int each) {
  constexpr int kSteps = 20;
  constexpr int kRounds = 3;  // opened, published, folded
  const std::vector<std::size_t> counts = {10, 200};
  const Step step(counts, 1, hosts * each);
  auto options = many_workers(hosts, each);
  options.world = std::make_shared<ThreadWorld>(hosts * each);
  PerStep found{};
  run_thread_ranks(
      hosts * each,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        HostTraffic before;
        Clock::time_point since;
        // Some steps before and after those that count, because workers come and go one by one.
        for (int k = -2; k < kSteps + 2; ++k) {
          const auto now = options.world->hosts()->traffic();
          if (k == 0) {
            before = now;
            since = Clock::now();
          }
          if (k == kSteps && job.rank() == 0) {
            const auto took = Clock::now() - since;
            const double late = std::chrono::duration<double>(took) / kHostCompany;
            const auto per_step = [&](std::uint64_t end, std::uint64_t begin) {
              return static_cast<double>(end - begin) / kSteps;
            };
            found = {.messages = per_step(now.messages, before.messages),
                     .most = 2 * (hosts - 1) * (kRounds + (late + kRounds) / kSteps),
                     .frames = per_step(now.frames, before.frames),
                     .bytes = per_step(now.bytes, before.bytes),
                     .ms = std::chrono::duration<double, std::milli>(took).count() / kSteps};
          }
          write_scope(exchange, step);
          finish(exchange);
        }
      },
      options);
  return found;
}

/// A round is a message from each host to the hub and one back, and so much for lateness: so a
/// worker's share does not grow with the number of hosts, and falls with that of a host's workers.
// promise: links#what-travels-between-hosts
TEST(ManyWorkersStep, HasAsManyMessagesBetweenHostsAsItHasRounds) {
  for (const auto& [hosts, each] :
       {std::pair{2, 2}, {4, 2}, {8, 2}, {16, 2}, {2, 8}, {4, 8}, {8, 8}}) {
#ifdef TUTTI_SANITIZED
    if (hosts * each > 16) continue;
#endif
    const auto found = traffic_of(hosts, each);
    const double workers = hosts * each;
    std::printf(
        "%2d hosts of %d: %.1f messages (most %.1f), %.0f frames, %.0f bytes a step of %.1f "
        "ms; %.2f messages a worker\n",
        hosts, each, found.messages, found.most, found.frames, found.bytes, found.ms,
        found.messages / workers);
    EXPECT_LE(found.messages, found.most);
    EXPECT_GE(found.messages, 2 * (hosts - 1) * 2);
  }
}

}  // namespace
}  // namespace tutti::test
