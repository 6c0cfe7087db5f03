// Sums that leave while others are still written, with ranks as threads that are made to meet.

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <map>

#include "support/thread_ranks.h"
#include "sync/whole_step.h"

namespace tutti::test {
namespace {

const std::vector<std::size_t> kLeavingCounts = {1500, 1500, 1500};  // a bucket each

std::string bytes_at(const void* at, std::size_t count) {
  return {static_cast<const char*>(at), count * sizeof(float)};
}

/// What has left in the open step, by parameter, and the bytes that it had then.
using SumsThatLeft = std::map<std::uint32_t, std::string>;

SumsLeave into(SumsThatLeft& left, const StepExchange& exchange) {
  return [&](std::span<const std::uint32_t> parameters) {
    for (const auto p : parameters) {
      EXPECT_EQ(left.count(p), 0u) << "parameter " << p << " has left before";
      left[p] = bytes_at(exchange.nodes().result(p), kLeavingCounts[p]);
    }
  };
}

// A bucket leaves when all have folded it, which each does when all have written it.
TEST(LeavingSums, LeaveWhileOthersAreWritten) {
  for (const int workers : {2, 3}) {
    std::barrier meeting(workers);
    run_thread_ranks(workers, [&](const Job& job) {
      StepExchange exchange(Group(job), plan_of(kLeavingCounts), small_buckets());
      SumsThatLeft left;
      exchange.let_sums_leave(into(left, exchange));
      for (std::int64_t step = 1; step <= 3; ++step) {
        std::vector<Leaf> leaves;
        for (int r = 0; r < workers; ++r) leaves.push_back(random_leaf(kLeavingCounts, step, r, 0));
        left.clear();
        exchange.open_one_backward(1);
        EXPECT_TRUE(exchange.holds_values());
        for (const std::size_t p : {2, 1, 0}) {
          exchange.leaves().write(p, leaves[static_cast<std::size_t>(job.rank())][p]->data(), true);
          EXPECT_TRUE(p != 2 || left.empty()) << "before all have folded it";
          meeting.arrive_and_wait();
        }
        EXPECT_EQ(left.count(2), 1u);
        EXPECT_EQ(left.count(0), 0u);
        finish(exchange);
        const std::vector<double> weights(leaves.size(), 1);
        for (const auto& [p, bytes] : left) {
          const auto expected = reduced(leaves, weights, p, workers);
          EXPECT_TRUE(bytes == bytes_at(expected->data(), expected->size())) << "parameter " << p;
        }
      }
    });
  }
}

// promise: data_parallel.h#synchronize
TEST(LeavingSums, LeaveAWorkerWithoutAGradientToo) {
  std::barrier meeting(2);
  run_thread_ranks(2, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kLeavingCounts), small_buckets());
    SumsThatLeft left;
    exchange.let_sums_leave(into(left, exchange));
    for (std::int64_t step = 1; step <= 4; ++step) {
      left.clear();
      const auto leaf = random_leaf(kLeavingCounts, step, 0, 0);
      if (job.rank() == step % 2) {
        exchange.open_one_backward(1);
        write_leaf(exchange, leaf);
      } else {
        exchange.open_without_gradient(0, false);
      }
      const auto& outcome = finish(exchange);
      for (const auto& [p, bytes] : left) {
        EXPECT_TRUE(bytes == bytes_at(leaf[p]->data(), leaf[p]->size())) << "parameter " << p;
        EXPECT_TRUE(outcome.touched[p]);
      }
      meeting.arrive_and_wait();
    }
  });
}

// In a group of one a gradient is its own sum: nothing is held of it, and it leaves when written.
TEST(LeavingSums, OfOneLeafAloneAreWhereTheyWere) {
  run_thread_ranks(1, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kLeavingCounts), small_buckets());
    std::vector<std::uint32_t> left;
    exchange.let_sums_leave([&](std::span<const std::uint32_t> parameters) {
      left.insert(left.end(), parameters.begin(), parameters.end());
    });
    exchange.open_one_backward(3);
    EXPECT_FALSE(exchange.holds_values());
    exchange.leaves().note(2, false);
    exchange.leaves().note(2, true);
    EXPECT_EQ(left, std::vector<std::uint32_t>{2});
    exchange.leaves().note(0, true);
    const auto& outcome = finish(exchange);
    EXPECT_EQ(outcome.touched, (std::vector<std::uint8_t>{1, 0, 1}));
    EXPECT_EQ(outcome.report.weight, 3);
    // A step of several leaves holds their sums; a leaf of weight 0 has no gradient.
    exchange.open_scope(std::nullopt);
    EXPECT_TRUE(exchange.holds_values());
    exchange.leaves().begin_leaf(1);
    const auto leaf = random_leaf(kLeavingCounts, 1, 0, 0);
    write_leaf(exchange, leaf);
    finish(exchange);
    EXPECT_TRUE(bytes_at(exchange.nodes().result(1), 1500) == bytes_at(leaf[1]->data(), 1500));
    exchange.open_one_backward(0);
    EXPECT_TRUE(exchange.holds_values());
    write_leaf(exchange, leaf);
    EXPECT_EQ(finish(exchange).touched[1], 0);
  });
}

}  // namespace
}  // namespace tutti::test
