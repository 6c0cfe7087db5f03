// The step protocol with ranks as threads: the same bytes for every way of cutting a list of
// leaves.

#include "sync/step/step_exchange.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "kernels/fold_program.h"
#include "support/text_of.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/whole_step.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

const std::vector<std::size_t> kExchangedCounts = {1, 63, 64, 65, 1024, 5000, 0, 17};

ExchangeOptions quick() {
  ExchangeOptions options;
  options.name = "model";
  options.fusion = 1024;
  options.first_fusion = 128;
  options.hint = "; a hint";
  return options;
}

Values result(const StepExchange& exchange, std::size_t parameter) {
  Values values(kExchangedCounts[parameter]);
  if (!values.empty()) {
    std::memcpy(values.data(), exchange.nodes().result(parameter), values.size() * sizeof(float));
  }
  return values;
}

void expect_reduced(const StepExchange& exchange, const StepExchange::Outcome& outcome,
                    const std::vector<Leaf>& leaves, const std::vector<double>& weights,
                    double divisor) {
  for (std::size_t p = 0; p < kExchangedCounts.size(); ++p) {
    const auto expected = reduced(leaves, weights, p, divisor);
    ASSERT_EQ(outcome.touched[p] != 0, expected.has_value()) << "parameter " << p;
    if (!expected || expected->empty()) continue;
    const auto got = result(exchange, p);
    ASSERT_EQ(std::memcmp(got.data(), expected->data(), got.size() * sizeof(float)), 0)
        << "parameter " << p;
  }
}

void write_leaf(StepExchange& exchange, const Leaf& leaf, bool last) {
  for (std::size_t i = leaf.size(); i > 0; --i) {  // backward reaches the last parameter first
    if (leaf[i - 1]) exchange.leaves().write(i - 1, leaf[i - 1]->data(), last);
  }
}

class Cut : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, Cut, ::testing::Values(1, 2, 3, 5, 8));

// promise: numerics#one-tree, step_report.h#buckets, step_report.h#collectives
TEST_P(Cut, AnyWorkersAnyLeavesGiveTheTreesBytes) {
  const int workers = GetParam();
  for (const std::int64_t total : {1, 2, 3, 4, 5, 7, 8, 13}) {
    for (const bool declared : {true, false}) {
      for (const bool hot : {true, false}) {
        run_thread_ranks(workers, [&](const Job& job) {
          StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
          for (std::int64_t step = 1; step <= 3; ++step) {
            std::vector<Leaf> leaves;
            std::vector<double> weights;
            double sum = 0;
            for (std::int64_t l = 0; l < total; ++l) {
              leaves.push_back(random_leaf(kExchangedCounts, step, l, 2));
              weights.push_back(static_cast<double>(1 + (l * 7 + step) % 4));
              sum += weights.back();
            }
            const auto [begin, end] = share_of(total, job.rank(), job.size());
            exchange.open_scope(declared ? std::optional(end - begin) : std::nullopt);
            for (auto l = begin; l < end; ++l) {
              exchange.leaves().begin_leaf(weights[static_cast<std::size_t>(l)]);
              write_leaf(exchange, leaves[static_cast<std::size_t>(l)], hot);
              exchange.leaves().end_leaf();
            }
            const auto& outcome = finish(exchange);
            ASSERT_EQ(outcome.report.leaves, total);
            ASSERT_EQ(outcome.report.collectives, 1);
            ASSERT_EQ(outcome.report.buckets, 1);
            ASSERT_EQ(outcome.report.weight, sum);
            expect_reduced(exchange, outcome, leaves, weights, sum);
          }
        });
      }
    }
  }
}

// One fold takes 64 nodes; 22 workers with 7 leaves each hand in 66 and more.
// promise: numerics#why-a-worker-may-add-before-it-knows-n
TEST(ManyNodes, MoreThanOneFoldTakesGiveTheTreesBytes) {
  constexpr int kWorkers = 22;
  constexpr std::int64_t kTotal = 7 * kWorkers;
  std::size_t nodes = 0;
  for (int r = 0; r < kWorkers; ++r) nodes += blocks_of_range(7 * r, 7 * r + 7).size();
  ASSERT_GT(nodes, 64U);
  for (const bool declared : {true, false}) {
    run_thread_ranks(kWorkers, [&](const Job& job) {
      StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
      std::vector<Leaf> leaves;
      std::vector<double> weights;
      double sum = 0;
      for (std::int64_t l = 0; l < kTotal; ++l) {
        leaves.push_back(random_leaf(kExchangedCounts, 1, l, 2));
        weights.push_back(static_cast<double>(1 + l % 4));
        sum += weights.back();
      }
      const auto [begin, end] = share_of(kTotal, job.rank(), job.size());
      exchange.open_scope(declared ? std::optional(end - begin) : std::nullopt);
      for (auto l = begin; l < end; ++l) {
        exchange.leaves().begin_leaf(weights[static_cast<std::size_t>(l)]);
        write_leaf(exchange, leaves[static_cast<std::size_t>(l)], true);
        exchange.leaves().end_leaf();
      }
      const auto& outcome = finish(exchange);
      ASSERT_EQ(outcome.report.leaves, kTotal);
      expect_reduced(exchange, outcome, leaves, weights, sum);
    });
  }
}

// promise: data_parallel.h#fusion, step_report.h#buckets, step_report.h#max_sent_bytes
TEST_P(Cut, SingleLeavesLeaveEarlyAndGiveTheTreesBytes) {
  const int workers = GetParam();
  run_thread_ranks(workers, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
    for (std::int64_t step = 1; step <= 6; ++step) {
      std::vector<Leaf> leaves;
      std::vector<double> weights;
      double sum = 0;
      for (int r = 0; r < workers; ++r) {
        leaves.push_back(random_leaf(kExchangedCounts, step, r, step % 3 == 0 ? 3 : 0));
        weights.push_back(1.0 + r % 3);
        sum += weights.back();
      }
      const auto me = static_cast<std::size_t>(job.rank());
      exchange.open_one_backward(weights[me]);
      write_leaf(exchange, leaves[me], true);
      const auto& outcome = finish(exchange);
      expect_reduced(exchange, outcome, leaves, weights, sum);
      std::size_t bytes = 0;
      for (std::size_t p = 0; p < kExchangedCounts.size(); ++p) {
        if (outcome.touched[p]) bytes += exchange.plan().parameters()[p].node_bytes;
      }
      ASSERT_EQ(outcome.report.max_sent_bytes, bytes);
      // 17, 0 and 5000 elements from the last on are one, then 1024, then the rest.
      ASSERT_EQ(outcome.report.buckets, 3);
    }
  });
}

// promise: data_parallel.h#synchronize
TEST(StepExchange, AWorkerThatJoinsCountsWithItsWeightOnly) {
  for (const bool scope : {false, true}) {
    run_thread_ranks(3, [&](const Job& job) {
      StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
      for (std::int64_t step = 1; step <= 3; ++step) {
        const double joined = step == 2 ? 0 : 2;
        std::vector<Leaf> leaves = {random_leaf(kExchangedCounts, step, 0, 1),
                                    Leaf(kExchangedCounts.size()),
                                    random_leaf(kExchangedCounts, step, 2, 1)};
        if (job.rank() == 1) {
          exchange.open_without_gradient(joined, false);
        } else if (scope) {
          exchange.open_scope(1);
          exchange.leaves().begin_leaf(1);
          write_leaf(exchange, leaves[static_cast<std::size_t>(job.rank())], true);
          exchange.leaves().end_leaf();
        } else {
          exchange.open_one_backward(1);
          write_leaf(exchange, leaves[static_cast<std::size_t>(job.rank())], true);
        }
        const auto& outcome = finish(exchange);
        expect_reduced(exchange, outcome, leaves, {1, joined, 1}, 2 + joined);
      }
    });
  }
}

// promise: data_parallel.h#weight, numerics#divisor-and-weights
TEST(StepExchange, ContributorsDivideEachParameterByItsOwnLeaves) {
  for (const int workers : {1, 2, 3}) {
    auto options = quick();
    options.divisor = Divisor::contributors;
    run_thread_ranks(workers, [&](const Job& job) {
      StepExchange exchange(Group(job), plan_of(kExchangedCounts), options);
      std::vector<Leaf> leaves;
      std::vector<double> weights;
      for (std::int64_t l = 0; l < 6; ++l) {
        leaves.push_back(random_leaf(kExchangedCounts, 1, l, 4));
        weights.push_back(static_cast<double>(l + 1));
      }
      const auto [begin, end] = share_of(6, job.rank(), job.size());
      exchange.open_scope(end - begin);
      for (auto l = begin; l < end; ++l) {
        exchange.leaves().begin_leaf(weights[static_cast<std::size_t>(l)]);
        write_leaf(exchange, leaves[static_cast<std::size_t>(l)], l % 2 == 0);
        exchange.leaves().end_leaf();
      }
      const auto& outcome = finish(exchange);
      for (std::size_t p = 0; p < kExchangedCounts.size(); ++p) {
        double divisor = 0;
        for (std::size_t l = 0; l < 6; ++l) divisor += leaves[l][p] ? weights[l] : 0;
        const auto expected = reduced(leaves, weights, p, divisor);
        ASSERT_EQ(outcome.touched[p] != 0, expected.has_value());
        if (!expected) continue;
        EXPECT_EQ(result(exchange, p), *expected) << p;
      }
    });
  }
}

// promise: data_parallel.h#micro_batch
TEST(StepExchange, SeveralWritesOfALeafAreAddedInCallOrder) {
  run_thread_ranks(2, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
    const auto a = random_leaf(kExchangedCounts, 1, job.rank(), 0);
    const auto b = random_leaf(kExchangedCounts, 2, job.rank(), 0);
    exchange.open_scope(1);
    exchange.leaves().begin_leaf(1);
    write_leaf(exchange, a, false);
    write_leaf(exchange, b, true);
    exchange.leaves().end_leaf();
    const auto& outcome = finish(exchange);
    std::vector<Leaf> leaves;
    for (int r = 0; r < 2; ++r) {
      auto sum = random_leaf(kExchangedCounts, 1, r, 0);
      const auto more = random_leaf(kExchangedCounts, 2, r, 0);
      for (std::size_t p = 0; p < kExchangedCounts.size(); ++p) {
        for (std::size_t i = 0; i < kExchangedCounts[p]; ++i) (*sum[p])[i] += (*more[p])[i];
      }
      leaves.push_back(std::move(sum));
    }
    expect_reduced(exchange, outcome, leaves, {1, 1}, 2);
  });
}

// The negative control of the tree: a running sum in leaf order gives other bits.
// promise: numerics#one-tree
TEST(StepExchange, ARunningSumWouldGiveOtherBytes) {
  std::vector<Leaf> leaves;
  for (std::int64_t l = 0; l < 4; ++l) leaves.push_back(random_leaf(kExchangedCounts, 1, l, 0));
  auto running = *leaves[0][5];
  for (std::size_t l = 1; l < 4; ++l) {
    for (std::size_t i = 0; i < running.size(); ++i) running[i] += (*leaves[l][5])[i];
  }
  EXPECT_NE(running, *reduced(leaves, {1, 1, 1, 1}, 5, 1));
}

// promise: error.h#PeerFailed
TEST(StepExchange, AFailureDropsTheStepForAllAndTheNextOneWorks) {
  run_thread_ranks(3, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
    for (std::int64_t step = 1; step <= 4; ++step) {
      std::vector<Leaf> leaves;
      for (int r = 0; r < 3; ++r) leaves.push_back(random_leaf(kExchangedCounts, step, r, 0));
      const auto& mine = leaves[static_cast<std::size_t>(job.rank())];
      exchange.open_one_backward(1);
      if (step == 2 && job.rank() == 1) {
        exchange.leaves().write(7, mine[7]->data(), true);
        exchange.protocol().fail("the disk is on fire");
        continue;
      }
      write_leaf(exchange, mine, true);
      if (step == 2) {
        try {
          finish(exchange);
          FAIL() << "the failure went unnoticed";
        } catch (const PeerFailed& error) {
          EXPECT_EQ(error.rank(), 1);
          EXPECT_EQ(error.step(), 2);
          EXPECT_THAT(error.what(), HasSubstr("the disk is on fire"));
          EXPECT_THAT(error.what(), HasSubstr("step 2"));
        }
        continue;
      }
      expect_reduced(exchange, finish(exchange), leaves, {1, 1, 1}, 3);
    }
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(StepExchange, CopiesThatDoNotFitAreOutOfMemoryThereAndAFailedPeerElsewhere) {
  const std::vector<std::size_t> counts = {1 << 20};  // copies of 4 MiB
  ThreadOptions options;
  options.memory_bounds = [] { return std::vector<MemoryBound>{{"the test", 64 << 20, 48 << 20}}; };
  run_thread_ranks(
      2,
      [&](const Job& job) {
        StepExchange exchange(Group(job), plan_of(counts), quick());
        const Values values(counts[0], 1.0F);
        const auto step = [&](std::int64_t micro_batches) {
          exchange.open_scope(micro_batches);
          exchange.leaves().begin_leaf(1);
          exchange.leaves().write(0, values.data(), true);
          exchange.leaves().end_leaf();
          return finish(exchange).report.leaves;
        };
        try {
          step(job.rank() == 0 ? 1 : 1000);
          ADD_FAILURE() << "80 MB and more were taken from 48 MiB";
        } catch (const OutOfMemory& error) {
          EXPECT_EQ(job.rank(), 1);
          EXPECT_THAT(error.what(),
                      HasSubstr("more gradient copies of \"model\", for 1000 pieces"));
        } catch (const PeerFailed& error) {
          EXPECT_EQ(job.rank(), 0);
          EXPECT_EQ(error.rank(), 1);
          EXPECT_THAT(error.what(), HasSubstr("not enough memory"));
        }
        EXPECT_EQ(step(1), 2);
      },
      options);
}

TEST(StepExchange, ACopyBeyondTheMemoryOfAScopeOfUntoldLengthIsOutOfMemory) {
  const std::vector<std::size_t> counts = {1 << 20};  // copies of 4 MiB
  ThreadOptions options;
  std::atomic<std::uint64_t> left{20 << 20};
  options.memory_bounds = [&] {
    return std::vector<MemoryBound>{{"the test", 64 << 20, left.load()}};
  };
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of(counts), quick());
        group.barrier();
        left = 6 << 20;
        const Values values(counts[0], 1.0F);
        const auto text = text_of<OutOfMemory>([&] {
          exchange.open_scope({});
          // Where the number of rank 0's leaves is not known, rank 1 cannot add its own.
          for (int leaf = 0; leaf < 1 + job.rank(); ++leaf) {
            exchange.leaves().begin_leaf(1);
            exchange.leaves().write(0, values.data(), true);
            exchange.leaves().end_leaf();
          }
        });
        if (job.rank() == 1) {
          EXPECT_THAT(text, HasSubstr("gradient copy 2 of \"model\""));
          exchange.protocol().fail(text);
        } else {
          EXPECT_THROW(finish(exchange), PeerFailed);
        }
      },
      options);
}

// promise: error.h#rank
TEST(StepExchange, AFailureInAGroupOfSomeNamesTheRankInTheJob) {
  run_thread_ranks(3, [&](const Job& job) {
    if (job.rank() == 0) return;
    StepExchange exchange(Group(job, {1, 2}, "some"), plan_of(kExchangedCounts), quick());
    exchange.open_one_backward(1);
    if (job.rank() == 2) {
      exchange.protocol().fail("the disk is on fire");
    } else {
      write_leaf(exchange, random_leaf(kExchangedCounts, 1, 1, 0), true);
      try {
        finish(exchange);
        FAIL() << "the failure went unnoticed";
      } catch (const PeerFailed& error) {
        EXPECT_EQ(error.rank(), 2);
        EXPECT_THAT(error.what(), HasSubstr("rank 2 failed: the disk is on fire"));
      }
    }
    exchange.open_one_backward(1);
    write_leaf(exchange, random_leaf(kExchangedCounts, 2, job.rank(), 0), true);
    finish(exchange);
  });
}

TEST(StepExchange, AWorkerThatEndsItsPartIsNamedWithAHint) {
  std::mutex mutex;
  std::vector<std::string> texts;
  const auto outcome = try_thread_ranks(3, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
    for (std::int64_t step = 1; step <= 2; ++step) {
      if (step == 2 && job.rank() == 2) return;
      exchange.open_one_backward(1);
      write_leaf(exchange, random_leaf(kExchangedCounts, step, job.rank(), 0), true);
      finish(exchange);
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 2"));
    EXPECT_THAT(outcome.text(rank), HasSubstr("; a hint"));
    EXPECT_THAT(outcome.text(rank), HasSubstr("step 2"));
  }
  EXPECT_EQ(outcome.text(2), "");
}

TEST(StepExchange, DifferentPlansAreRefusedOnEveryWorkerWithTheSameText) {
  const auto outcome = try_thread_ranks(3, [&](const Job& job) {
    auto counts = kExchangedCounts;
    if (job.rank() == 2) counts[3] = 66;
    StepExchange exchange(Group(job), plan_of(counts), quick());
  });
  EXPECT_THAT(outcome.text(0), HasSubstr("rank 2"));
  EXPECT_THAT(outcome.text(0), HasSubstr("\"p3\""));
  EXPECT_THAT(outcome.text(0), HasSubstr("[66]"));
  EXPECT_EQ(outcome.text(0), outcome.text(1));
  EXPECT_EQ(outcome.text(0), outcome.text(2));
}

TEST(StepExchange, OneBackwardMeetsAScopeAndAllSaySo) {
  const auto outcome = try_thread_ranks(2, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kExchangedCounts), quick());
    if (job.rank() == 0) {
      exchange.open_one_backward(1);
      write_leaf(exchange, random_leaf(kExchangedCounts, 1, 0, 0), true);
    } else {
      exchange.open_scope(1);
      exchange.leaves().begin_leaf(1);
      write_leaf(exchange, random_leaf(kExchangedCounts, 1, 1, 0), true);
      exchange.leaves().end_leaf();
    }
    finish(exchange);
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 0 with one backward"));
    EXPECT_THAT(outcome.text(rank), HasSubstr("rank 1 with an accumulation scope"));
  }
}

TEST(StepExchange, DigestsNameTheFirstParameterThatDiffers) {
  struct Case {
    std::int64_t changed_in, every, found_in;
  };
  for (const auto& [changed_in, every, found_in] :
       {Case{1, 100, 1}, Case{2, 100, 2}, Case{3, 100, 4}, Case{5, 100, 8}, Case{3, 3, 3},
        Case{65, 5, 65}, Case{65, 7, 70}}) {
    auto options = quick();
    options.desync_check_every = every;
    const auto outcome = try_thread_ranks(3, [&](const Job& job) {
      StepExchange exchange(Group(job), plan_of(kExchangedCounts), options);
      std::vector<Values> values;
      ModelMemory memory;
      for (std::size_t p = 0; p < kExchangedCounts.size(); ++p) {
        values.push_back(random_values(p, kExchangedCounts[p]));
      }
      for (const auto& v : values) memory.parameters.push_back(v.data());
      for (std::int64_t step = 1; step <= found_in; ++step) {
        if (step == changed_in && job.rank() == 1) values[4][1000] += 1e-3f;
        exchange.open_one_backward(1);
        write_leaf(exchange, random_leaf(kExchangedCounts, step, job.rank(), 0), true);
        finish(exchange, memory);
        ASSERT_LT(step, found_in);
      }
    });
    for (const int rank : {0, 1, 2}) {
      EXPECT_THAT(outcome.text(rank), HasSubstr(fmt::format("step {} of", found_in)));
      EXPECT_THAT(outcome.text(rank), HasSubstr("\"p4\" of rank 1 differs from that of rank 0"));
    }
  }
}

TEST(StepExchange, DigestsNameABufferThatDoesNotHoldWhatWasSent) {
  auto options = quick();
  options.desync_check_every = 3;
  const auto outcome = try_thread_ranks(2, [&](const Job& job) {
    const TensorSpec mean{"mean", {16}, {1}, 16, DType::uint8};
    const TensorSpec variance{"variance", {16}, {1}, 16, DType::uint8};
    const TensorSpec weight{"weight", {1}, {1}, 1, DType::float32};
    StepExchange exchange(Group(job), Plan({weight}, {mean, variance}), options);
    const float value = 1;
    std::vector<std::uint8_t> first(16, 1);
    std::vector<std::uint8_t> second(16, 2);
    // On one worker, one buffer lies upon the other.
    ModelMemory memory{{&value}, {first.data(), second.data()}};
    if (job.rank() == 1) memory.buffers[0] = memory.buffers[1];
    for (std::int64_t step = 1; step <= 2; ++step) {
      exchange.open_one_backward(1);
      exchange.leaves().write(0, &value, true);
      finish(exchange, memory);
      ASSERT_LT(step, 2);
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(outcome.text(rank), HasSubstr("step 2"));
    EXPECT_THAT(outcome.text(rank), HasSubstr("buffer \"mean\" of rank 1 differs"));
  }
}

}  // namespace
}  // namespace tutti::test
