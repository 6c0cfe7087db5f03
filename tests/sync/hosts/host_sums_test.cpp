// Steps of workers on several hosts over simulated links, against the tree over all leaves.

#include "sync/hosts/host_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/link/link_engine.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/plan/assignment.h"
#include "sync/step/step_exchange.h"
#include "sync/whole_step.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

HostMap hosts_of(const std::vector<std::vector<int>>& ranks) {
  std::vector<RankSet> sets;
  for (const auto& host : ranks) sets.push_back(RankSet::of(host));
  return HostMap::of(sets);
}

ThreadOptions on(const std::vector<std::vector<int>>& ranks) {
  ThreadOptions options;
  options.hosts = hosts_of(ranks);
  options.world = std::make_shared<ThreadWorld>(options.hosts->size());
  return options;
}

void expect_reduced(const StepExchange& exchange, const std::vector<std::size_t>& counts,
                    const std::vector<Leaf>& leaves, const std::vector<double>& weights) {
  double sum = 0;
  for (const auto weight : weights) sum += weight;
  for (std::size_t p = 0; p < counts.size(); ++p) {
    const auto expected = reduced(leaves, weights, p, sum);
    if (!expected || expected->empty()) continue;
    ASSERT_EQ(
        std::memcmp(exchange.nodes().result(p), expected->data(), expected->size() * sizeof(float)),
        0)
        << "parameter " << p;
  }
}

/// A step of `total` leaves, dealt evenly.
void run_scope(StepExchange& exchange, const std::vector<std::size_t>& counts, std::int64_t step,
               std::int64_t total, unsigned absent_in_eight) {
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  for (std::int64_t l = 0; l < total; ++l) {
    leaves.push_back(random_leaf(counts, step, l, absent_in_eight));
    weights.push_back(static_cast<double>(1 + (l * 7 + step) % 4));
  }
  const auto& group = exchange.group();
  const auto [begin, end] = share_of(total, group.rank(), group.size());
  exchange.open_scope(end - begin);
  for (auto l = begin; l < end; ++l) {
    exchange.leaves().begin_leaf(weights[static_cast<std::size_t>(l)]);
    write_leaf(exchange, leaves[static_cast<std::size_t>(l)]);
    exchange.leaves().end_leaf();
  }
  finish(exchange);
  expect_reduced(exchange, counts, leaves, weights);
}

// promise: links#what-travels-between-hosts
TEST(HostSums, AnyLayoutOfHostsGivesTheTreesBytes) {
  const std::vector<std::size_t> counts = {1, 63, 4097, 9000, 0, 20000, 17};
  for (const auto& layout : std::vector<std::vector<std::vector<int>>>{{{0, 1}, {2, 3}},
                                                                       {{0}, {1}, {2}, {3}},
                                                                       {{0, 2}, {1, 3}},
                                                                       {{0, 1, 2}, {3}},
                                                                       {{0}, {1, 2}}}) {
    auto options = on(layout);
    run_thread_ranks(
        options.hosts->size(),
        [&](const Job& job) {
          StepExchange exchange(Group(job), plan_of(counts), small_buckets());
          std::int64_t step = 0;
          for (const std::int64_t total : {1, 4, 5, 7, 13}) {
            run_scope(exchange, counts, ++step, total, 2);
          }
        },
        options);
  }
}

TEST(HostSums, AnArrayOfMorePiecesThanAreUnderWayAtOnce) {
  const std::vector<std::size_t> counts = {4'300'001, 300};
  run_thread_ranks(
      3,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        run_scope(exchange, counts, 1, 3, 0);
      },
      on({{0, 1}, {2}}));
}

TEST(HostSums, LanesDecideNoByte) {
  const std::vector<std::size_t> counts = {kSanitized ? 200'001U : 1'000'001U, 63, 4097, 9000,
                                           kSanitized ? 60'000U : 300'000U};
  for (const char* const lanes : {"2", "5"}) {
    ::setenv("TUTTI_LANES", lanes, 1);
    run_thread_ranks(
        5,
        [&](const Job& job) {
          StepExchange exchange(Group(job), plan_of(counts), small_buckets());
          for (std::int64_t step = 1; step < 4; ++step) run_scope(exchange, counts, step, 7, 2);
        },
        on({{0, 1}, {2}, {3, 4}}));
  }
  ::unsetenv("TUTTI_LANES");
}

// promise: links#what-travels-between-hosts
TEST(HostSums, AHostSendsAGradientOnceHoweverManyWorkersItHas) {
  const std::vector<std::size_t> counts = {100'000, 30'000};
  constexpr double kBytes = 130'000 * sizeof(float);
  for (const auto& layout :
       std::vector<std::vector<std::vector<int>>>{{{0}, {1}}, {{0, 1, 2, 3}, {4, 5, 6, 7}}}) {
    auto options = on(layout);
    std::uint64_t bytes = 0;
    run_thread_ranks(
        options.hosts->size(),
        [&](const Job& job) {
          StepExchange exchange(Group(job), plan_of(counts), small_buckets());
          run_scope(exchange, counts, 1, 8, 0);
          Group(job).barrier();
          if (job.rank() == 0) bytes = options.world->hosts()->link_bytes(0);
        },
        options);
    // Half of the other host's nodes, and half of the sums.
    EXPECT_GT(static_cast<double>(bytes), 0.99 * kBytes);
    EXPECT_LT(static_cast<double>(bytes), 1.01 * kBytes);
  }
}

// promise: links#what-travels-between-hosts
TEST(HostSums, BucketsTravelWhileBackwardRuns) {
  const std::vector<std::size_t> counts(200, 200);
  auto options = on({{0, 1}, {2, 3}});
  run_thread_ranks(
      4,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        std::vector<Leaf> leaves;
        for (std::int64_t l = 0; l < 4; ++l) leaves.push_back(random_leaf(counts, 1, l, 0));
        const auto& mine = leaves[static_cast<std::size_t>(job.rank())];
        exchange.open_one_backward(1);
        for (std::size_t p = counts.size() - 1; p > 0; --p) {
          exchange.leaves().write(p, mine[p]->data(), true);
          const auto end = Clock::now() + std::chrono::milliseconds(150);
          while (options.world->hosts()->link_bytes(0) == 0 && Clock::now() < end) {
            std::this_thread::yield();
          }
        }
        EXPECT_GT(options.world->hosts()->link_bytes(0), 0);
      },
      options);
}

// promise: links#what-travels-between-hosts
TEST(HostSums, ABucketTravelsHoweverLongTheNextLayersBackwardTakes) {
  const std::vector<std::size_t> counts(40, 200);
  auto options = on({{0, 1}, {2, 3}});
  run_thread_ranks(
      4,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        for (std::int64_t step = 1; step <= 20; ++step) {
          auto& hosts = *options.world->hosts();
          std::vector<Leaf> leaves;
          for (std::int64_t l = 0; l < 4; ++l) leaves.push_back(random_leaf(counts, step, l, 0));
          const auto& mine = leaves[static_cast<std::size_t>(job.rank())];
          // All have left the step before, so that no byte of it is on its way.
          Group(job).barrier();
          const auto before = std::pair(hosts.link_bytes(0), hosts.link_bytes(1));
          Group(job).barrier();
          exchange.open_one_backward(1);
          for (std::size_t p = counts.size() - 1; p >= 20; --p) {
            exchange.leaves().write(p, mine[p]->data(), true);
          }
          // Nobody calls anything until every host has its slice of most that the others have, and
          // the sums: half of these parameters' bytes each.
          const auto end = Clock::now() + std::chrono::seconds(40);
          const std::uint64_t bytes = 18 * 200 * sizeof(float);
          while (hosts.link_bytes(0) - before.first < bytes ||
                 hosts.link_bytes(1) - before.second < bytes) {
            ASSERT_LT(Clock::now(), end) << "in step " << step;
            std::this_thread::yield();
          }
          for (std::size_t p = 20; p-- > 0;) exchange.leaves().write(p, mine[p]->data(), true);
          finish(exchange);
          expect_reduced(exchange, counts, leaves, {1, 1, 1, 1});
        }
      },
      options);
}

/// What a worker gives in a step of shards: some have a weight of 0, none lacks in the last one.
struct ShardStep {
  std::vector<Leaf> leaves;
  std::vector<double> weights;
  ShardStep(const std::vector<std::size_t>& counts, std::int64_t step, std::int64_t total,
            unsigned absent_in_eight, bool may_be_nothing) {
    for (std::int64_t l = 0; l < total; ++l) {
      leaves.push_back(random_leaf(counts, step, l, absent_in_eight));
      weights.push_back(static_cast<double>((l * 7 + step) % 4 + (may_be_nothing ? 0 : 1)));
      if (weights.back() == 0) leaves.back().assign(counts.size(), std::nullopt);
    }
  }
};

// promise: links#what-travels-between-hosts
TEST(HostSums, BucketsOfTheLastShardTravelWhileItsBackwardRuns) {
  const std::vector<std::size_t> counts(200, 200);
  auto options = on({{0, 1}, {2, 3}});
  run_thread_ranks(
      4,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        const ShardStep step(counts, 1, 9, 0, false);
        const std::int64_t first = 3 * job.rank();
        if (job.rank() == 3) {
          exchange.open_shards(first, 0);
          finish(exchange);
          return expect_reduced(exchange, counts, step.leaves, step.weights);
        }
        exchange.open_shards(first, 3);
        for (std::int64_t l = first; l < first + 3; ++l) {
          const auto& leaf = step.leaves[static_cast<std::size_t>(l)];
          exchange.leaves().begin_leaf(step.weights[static_cast<std::size_t>(l)]);
          for (std::size_t p = counts.size() - 1; p > 0; --p) {
            exchange.leaves().write(p, leaf[p]->data(), true);
            const auto end = Clock::now() + std::chrono::milliseconds(l == first + 2 ? 150 : 0);
            while (options.world->hosts()->link_bytes(0) == 0 && Clock::now() < end) {
              std::this_thread::yield();
            }
          }
          const bool is_last = l == first + 2;
          if (is_last) {
            EXPECT_GT(options.world->hosts()->link_bytes(0), 0);
          }
          exchange.leaves().write(0, leaf[0]->data(), true);
          exchange.leaves().end_leaf();
        }
        EXPECT_GT(finish(exchange).report.buckets, 10);
        expect_reduced(exchange, counts, step.leaves, step.weights);
      },
      options);
}

TEST(HostSums, ShardsOfAnyShareGiveTheTreesBytes) {
  const std::vector<std::size_t> counts = {1, 63, 4097, 900, 0, 2000, 17, 5, 300, 129};
  for (const auto& layout : std::vector<std::vector<std::vector<int>>>{
           {{0, 1}, {2, 3}}, {{0}, {1}, {2}}, {{0, 2}, {1, 3, 4}}}) {
    auto options = on(layout);
    run_thread_ranks(
        options.hosts->size(),
        [&](const Job& job) {
          StepExchange exchange(Group(job), plan_of(counts), small_buckets());
          std::int64_t number = 0;
          for (const std::int64_t total : {1, 3, 7, 8, 13, 13, 16}) {
            ++number;
            const ShardStep step(counts, number, total, number % 2 != 0 ? 0 : 3, number > 2);
            const auto mine =
                assign_shards(total, job.size())[static_cast<std::size_t>(job.rank())];
            exchange.open_shards(mine.begin, mine.count());
            for (auto l = mine.begin; l < mine.end; ++l) {
              exchange.leaves().begin_leaf(step.weights[static_cast<std::size_t>(l)]);
              write_leaf(exchange, step.leaves[static_cast<std::size_t>(l)]);
              exchange.leaves().end_leaf();
            }
            finish(exchange);
            expect_reduced(exchange, counts, step.leaves, step.weights);
          }
        },
        options);
  }
}

TEST(HostSums, AShardThatFailsWhileItsBucketsTravelDropsTheStep) {
  const std::vector<std::size_t> counts(20, 2000);
  auto options = on({{0, 1}, {2, 3}});
  run_thread_ranks(
      4,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        for (std::int64_t number = 1; number <= 6; ++number) {
          const ShardStep step(counts, number, 8, 0, false);
          exchange.open_shards(2 * job.rank(), 2);
          for (std::size_t l = 0; l < 2; ++l) {
            const auto index = 2 * static_cast<std::size_t>(job.rank()) + l;
            exchange.leaves().begin_leaf(step.weights[index]);
            for (std::size_t p = counts.size() - 1; p > 0; --p) {
              exchange.leaves().write(p, step.leaves[index][p]->data(), true);
            }
            if (l == 1 && number % 2 == 0 && job.rank() == 1) break;
            exchange.leaves().write(0, step.leaves[index][0]->data(), true);
            exchange.leaves().end_leaf();
          }
          if (number % 2 == 0) {
            if (job.rank() == 1) {
              exchange.protocol().fail("a loss of its own");
            } else {
              EXPECT_THROW(finish(exchange), PeerFailed);
            }
            continue;
          }
          finish(exchange);
          expect_reduced(exchange, counts, step.leaves, step.weights);
        }
      },
      options);
}

// promise: data_parallel.h#fusion
TEST(HostSums, BucketsBetweenHostsAreSmallerThanOnOne) {
  const std::vector<std::size_t> counts(4, 600'000);
  for (const auto& layout : std::vector<std::vector<std::vector<int>>>{{{0, 1}}, {{0}, {1}}}) {
    run_thread_ranks(
        2,
        [&](const Job& job) {
          ExchangeOptions options;
          options.name = "model";
          StepExchange exchange(Group(job), plan_of(counts), options);
          exchange.open_one_backward(1);
          write_leaf(exchange, random_leaf(counts, 1, job.rank(), 0));
          EXPECT_EQ(finish(exchange).report.buckets, layout.size() == 1 ? 2 : 3);
        },
        on(layout));
  }
}

// promise: step_report.h#exposed_seconds
TEST(HostSums, WhatNoBackwardHidesIsReported) {
  const std::vector<std::size_t> counts = {4'300'001};
  for (const auto& layout :
       std::vector<std::vector<std::vector<int>>>{{{0, 1, 2}}, {{0, 1}, {2}}}) {
    run_thread_ranks(
        3,
        [&](const Job& job) {
          StepExchange exchange(Group(job), plan_of(counts), small_buckets());
          const auto begin = Clock::now();
          exchange.open_one_backward(1);
          write_leaf(exchange, random_leaf(counts, 1, job.rank(), 0));
          const auto exposed = finish(exchange).report.exposed_seconds;
          const std::chrono::duration<double> whole = Clock::now() - begin;
          if (layout.size() == 1) {
            EXPECT_EQ(exposed, 0);
          } else {
            EXPECT_GT(exposed, 0);
            EXPECT_LT(exposed, whole.count());
          }
        },
        on(layout));
  }
}

TEST(HostSums, AfterADroppedStepTheNextOneWorks) {
  const std::vector<std::size_t> counts = {5000, 9000};
  run_thread_ranks(
      4,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        for (std::int64_t step = 1; step <= 6; ++step) {
          if (step % 2 != 0) {
            run_scope(exchange, counts, step, 4, 0);
            continue;
          }
          const auto leaf = random_leaf(counts, step, job.rank(), 0);
          exchange.open_one_backward(1);
          exchange.leaves().write(1, leaf[1]->data(), true);  // a bucket may be on its way
          if (job.rank() == 2) {
            exchange.protocol().fail("a loss of its own");
            continue;
          }
          exchange.leaves().write(0, leaf[0]->data(), true);
          EXPECT_THROW(finish(exchange), PeerFailed);
        }
      },
      on({{0, 1}, {2, 3}}));
}

TEST(HostSums, ALinkThatBreaksIsAnErrorThatNamesTheHost) {
  const std::vector<std::size_t> counts = {5000, 9000};
  auto options = on({{0, 1}, {2, 3}});
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), small_buckets());
        run_scope(exchange, counts, 1, 4, 0);
        Group(job).barrier();
        if (job.rank() == 0) options.world->hosts()->break_links(1);
        Group(job).barrier();
        run_scope(exchange, counts, 2, 4, 0);
      },
      options);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("the link to the host of rank")) << rank;
  }
}

/// Each neighbour counted as behind the other where there was no piece to fill: what took a tenth
/// of a second between hosts was "workers wait for one another".
TEST(HostSums, NeighboursThatWaitForRowsOfAnotherHostDoNotWaitForOneAnother) {
  auto options = on({{0, 1}, {2, 3}});
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        const TensorSpec table{.name = "table",
                               .shape = {50, 2},
                               .strides = {2, 1},
                               .count = 100,
                               .dtype = DType::float32,
                               .row_sparse = true};
        StepExchange exchange(Group(job), Plan({table}, {}), small_buckets());
        Group(job).barrier();
        if (job.rank() == 0) options.world->hosts()->break_links(1);
        Group(job).barrier();
        exchange.open_shards(job.rank(), 1);
        exchange.leaves().begin_leaf(1);
        const std::vector<std::int64_t> rows = {3, 7};
        const Values values = {1, 2, 3, 4};
        exchange.leaves().write(0, RowEntries{rows.data(), values.data(), 2}, true);
        exchange.leaves().end_leaf();
        exchange.arrive({});
      },
      options);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("the link to the host of rank")) << rank;
  }
}

/// The others of its host were told that it had left the job, with its rank as the lost one.
TEST(HostSums, AWorkerHearsWhyTheFirstOfItsHostCouldNotMakeTheLink) {
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        const Group group(job);
        if (job.rank() == 0) {
          set_link_engine({"broken", [](const LinkRequest&) -> std::unique_ptr<Link> {
                             throw PeerLost(2, "rank 2 ended before coming to the link");
                           }});
        }
        group.barrier();
        StepExchange exchange(group, plan_of({5000}), small_buckets());
        run_scope(exchange, {5000}, 1, 4, 0);
      },
      on({{0, 1}, {2, 3}}));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(outcome.text(rank), "rank 2 ended before coming to the link") << rank;
  }
}

}  // namespace
}  // namespace tutti::test
