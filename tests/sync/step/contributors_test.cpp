// The divisor of Divisor::contributors: weights are added along the tree, as gradients are, so that
// it does not show how the leaves are spread over workers.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/thread_ranks.h"
#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/step_exchange.h"
#include "sync/whole_step.h"
#include "tutti/codec.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

// (a + b) + (c + d) is not ((a + b) + c) + d.
constexpr std::array<double, 4> kWeights = {0.1, 0.1, 0.1, 0.4};

ExchangeOptions contributors_options() {
  ExchangeOptions options;
  options.divisor = Divisor::contributors;
  return options;
}

/// This worker's share of four leaves whose gradients are 1: whatever divides Σ w along the tree by
/// Σ w along the tree gets 1.
template <class Write>
void four_leaves(StepExchange& exchange, const Write& write) {
  const auto& group = exchange.group();
  const auto [begin, end] = share_of(4, group.rank(), group.size());
  exchange.open_scope(end - begin);
  for (auto l = begin; l < end; ++l) {
    exchange.leaves().begin_leaf(kWeights[static_cast<std::size_t>(l)]);
    write();
    exchange.leaves().end_leaf();
  }
}

// promise: numerics#divisor-and-weights
TEST(Contributors, TheirWeightsAreAddedAlongTheTreeWhateverTheNumberOfWorkers) {
  for (const int workers : {1, 2, 3, 4}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const TensorSpec spec{"p", {3}, {1}, 3, DType::float64};
      StepExchange exchange(Group(job), Plan({spec}, {}), contributors_options());
      const std::vector<double> ones(3, 1.0);
      four_leaves(exchange, [&] { exchange.leaves().write(0, ones.data(), true); });
      finish(exchange);
      const auto* const got = reinterpret_cast<const double*>(exchange.nodes().result(0));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(got[i], 1.0) << workers << " workers";
    });
  }
}

// promise: numerics#divisor-and-weights
TEST(Weights, OfAllLeavesAreAddedAlongTheTreeWhateverTheNumberOfWorkers) {
  ASSERT_NE((0.1 + 0.1) + (0.1 + 0.4), ((0.1 + 0.1) + 0.1) + 0.4);
  for (const int workers : {1, 2, 3, 4}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const TensorSpec spec{"p", {3}, {1}, 3, DType::float64};
      StepExchange exchange(Group(job), Plan({spec}, {}), {});
      const std::vector<double> ones(3, 1.0);
      four_leaves(exchange, [&] { exchange.leaves().write(0, ones.data(), true); });
      const auto& outcome = finish(exchange);
      EXPECT_EQ(outcome.report.weight, (0.1 + 0.1) + (0.1 + 0.4)) << workers << " workers";
      const auto* const got = reinterpret_cast<const double*>(exchange.nodes().result(0));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(got[i], 1.0) << workers << " workers";
    });
  }
}

// promise: numerics#divisor-and-weights
TEST(Contributors, ThoseOfARowSparseTableAreAddedAlongTheTreeToo) {
  for (const int workers : {1, 2, 3, 4}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const TensorSpec table{.name = "table",
                             .shape = {5, 2},
                             .strides = {2, 1},
                             .count = 10,
                             .dtype = DType::float64,
                             .row_sparse = true};
      StepExchange exchange(Group(job), Plan({table}, {}), contributors_options());
      RowGradients rows(exchange);
      const std::vector<std::int64_t> touched = {3};
      const std::vector<double> ones(2, 1.0);
      four_leaves(exchange, [&] {
        exchange.leaves().write(0, RowEntries{touched.data(), ones.data(), 1}, true);
      });
      std::int64_t folded = 0;
      exchange.arrive({});
      rows.begin(1);
      exchange.complete([&] {
        folded = rows.merge(0, {0, 5}, [&](const RowList& list) {
          const auto* const got = reinterpret_cast<const double*>(list.values);
          EXPECT_EQ(got[0], 1.0) << workers << " workers";
          EXPECT_EQ(got[1], 1.0) << workers << " workers";
        });
      });
      EXPECT_EQ(folded, 1);
    });
  }
}

// Weights for which float32(w0 / Σ w) tells how Σ w was added.
// promise: codec.h#round_sum
TEST(Contributors, SharesOfMessagesAreOfTheTreesSum) {
  constexpr std::array<double, 4> w = {0x1.a4128f7d39f7ap-1, 0x1.92845ba1035d8p-1,
                                       0x1.d645e462c8acap-2, 0x1.ebd70f608e95cp-1};
  const auto along_the_tree = static_cast<float>(w[0] / ((w[0] + w[1]) + (w[2] + w[3])));
  ASSERT_NE(along_the_tree, static_cast<float>(w[0] / (((w[0] + w[1]) + w[2]) + w[3])));
  run_thread_ranks(4, [&](const Job& job) {
    const TensorSpec spec{"p", {1}, {1}, 1, DType::float32};
    auto options = contributors_options();
    options.coded = true;
    StepExchange exchange(Group(job), Plan({spec}, {}), options);
    CodedGradients coded(
        exchange, {.compression = {.codec = top_k_codec(1)}, .divisor = Divisor::contributors});
    exchange.open_one_backward(w[static_cast<std::size_t>(job.rank())]);
    const float gradient = job.rank() == 0 ? 1 : 0;
    exchange.leaves().write(0, &gradient, true);
    coded.wrote(0, 1);
    finish(exchange, coded);
    EXPECT_EQ(*reinterpret_cast<const float*>(exchange.nodes().result(0)), along_the_tree);
  });
}

// Its gradients are divided by nothing, so they are not multiplied either.
TEST(Weights, OfAWorkerAloneLeaveItsGradientAsItIs) {
  run_thread_ranks(1, [](const Job& job) {
    const TensorSpec spec{"p", {1}, {1}, 1, DType::float32};
    StepExchange exchange(Group(job), Plan({spec}, {}), {});
    exchange.open_one_backward(3);
    const float gradient = 0.1f;
    exchange.leaves().write(0, &gradient, true);
    finish(exchange);
    EXPECT_EQ(*reinterpret_cast<const float*>(exchange.nodes().result(0)), gradient);
  });
}

}  // namespace
}  // namespace tutti::test
