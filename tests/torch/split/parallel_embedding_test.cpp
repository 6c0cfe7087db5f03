// A table that is split by rows, beside torch::nn::Embedding on the joined batch.

#include "tutti/parallel_embedding.h"

#include "comm/group_state.h"
#include "torch/split/whole.h"

namespace tutti::test::parallel_embedding_cases {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::int64_t kDim = 3;

ParallelEmbeddingOptions options_of(std::int64_t rows, std::uint64_t seed = 5) {
  return {.rows = rows, .dim = kDim, .seed = seed, .dtype = torch::kFloat64};
}

torch::nn::Embedding whole_of(const Group& group, const ParallelEmbeddingOptions& options) {
  const ParallelEmbedding alone(group.split(group.rank(), "alone"), options);
  torch::nn::Embedding whole(torch::nn::EmbeddingOptions(options.rows, options.dim)
                                 .sparse(true)
                                 .padding_idx(options.padding_idx));
  whole->to(options.dtype);
  const torch::NoGradGuard off;
  whole->weight.copy_(alone->weight);
  return whole;
}

class ParallelEmbeddingOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, ParallelEmbeddingOf, ::testing::ValuesIn(kNumbersOfWorkers));

// promise: parallel_embedding.h#ParallelEmbeddingOptions, parallel_embedding.h#seed
TEST_P(ParallelEmbeddingOf, InitialValuesAreThoseOfOneMember) {
  on_workers(GetParam(), [](const Job& job) {
    const Group group(job);
    for (const std::int64_t rows : {1, 2, 7, 130, 400}) {
      const ParallelEmbedding mine(group, options_of(rows));
      const auto whole = whole_of(group, options_of(rows)).get()->weight;
      EXPECT_TRUE(torch::equal(mine->weight, part_of(whole, group))) << rows;
      EXPECT_EQ(mine->first(), share_of(rows, group).first);
      if (rows < 400) continue;
      EXPECT_NEAR(whole.mean().item<double>(), 0, 0.1);
      EXPECT_NEAR(whole.std().item<double>(), 1, 0.1);
    }
  });
}

/// Trains both for a few steps, with an optimizer of each.
template <class Optimizer, class Options>
void expect_same_training(const Group& group, std::int64_t rows, const Options& settings,
                          std::optional<std::int64_t> padding) {
  auto options = options_of(rows);
  options.padding_idx = padding;
  ParallelEmbedding mine(group, options);
  auto whole = whole_of(group, options);
  Optimizer optimizer(mine->parameters(), settings);
  Optimizer whole_optimizer(whole->parameters(), settings);
  const UnevenBatch batch(group);
  for (std::uint64_t step = 0; step < 3; ++step) {
    // The upper half of the rows is never looked up.
    const auto indices = drawn_labels(10 + step, (rows + 1) / 2, {batch.total(), 2});
    const auto weights = drawn(20 + step, {batch.total(), 2, kDim});
    optimizer.zero_grad();
    const auto x = mine->forward(batch.mine(indices).to(step == 1 ? torch::kInt32 : torch::kInt64));
    ops::backward(group, curved(x, batch.mine(weights)));
    EXPECT_TRUE(mine->weight.grad().is_sparse());
    const auto touched = mine->weight.grad()._indices()[0];
    EXPECT_TRUE((touched.diff() > 0).all().template item<bool>()) << "each once, ascending";
    const auto before = mine->weight.detach().clone();
    optimizer.step();

    whole_optimizer.zero_grad();
    const auto whole_x = whole->forward(indices);
    curved(whole_x, weights).backward();
    whole_optimizer.step();
    const auto what = fmt::format("{} rows, step {}", rows, step);
    expect_near(x, batch.mine(whole_x), what);
    expect_near(mine->weight, part_of(whole->weight, group), what);
    auto is_touched = torch::zeros({mine->weight.size(0)}, torch::kBool);
    is_touched.index_fill_(0, touched, true);
    EXPECT_TRUE(torch::equal(mine->weight.index({~is_touched}), before.index({~is_touched})));
    // Exactly the rows that some member looked up, but the padding.
    auto wanted = torch::zeros({rows}, torch::kBool);
    wanted.index_fill_(0, indices.flatten(), true);
    if (padding) wanted[*padding] = false;
    EXPECT_TRUE(torch::equal(is_touched, part_of(wanted, group))) << what;
  }
}

// promise: parallel_embedding.h#forward, parallel_embedding.h#padding_idx
TEST_P(ParallelEmbeddingOf, TrainsAsTheWholeByOptimizersThatKnowSparseGradients) {
  on_workers(GetParam(), [](const Job& job) {
    const Group group(job);
    for (const std::int64_t rows : {1, 2, 7, 10}) {
      expect_same_training<torch::optim::SGD>(group, rows, torch::optim::SGDOptions(0.1), {});
      expect_same_training<torch::optim::Adagrad>(group, rows, torch::optim::AdagradOptions(0.1),
                                                  {});
    }
    expect_same_training<torch::optim::SGD>(group, 7, torch::optim::SGDOptions(0.1), 1);
    expect_same_training<torch::optim::SGD>(group, 10, torch::optim::SGDOptions(0.1), 4);
  });
}

/// What torch's optimizers make of a sparse gradient: beside a table with dense ones.
// promise: parallel_embedding.h#ParallelEmbedding
TEST(ParallelEmbedding, MomentumMovesAllRowsThatWereLookedUpAndDecayIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto options = options_of(7);
    ParallelEmbedding mine(group, options);
    auto whole = whole_of(group, options);
    auto dense = whole->weight.detach().clone().requires_grad_();
    const auto settings = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD optimizer(mine->parameters(), settings);
    torch::optim::SGD dense_optimizer({dense}, settings);
    for (const std::int64_t row : {0, 5, 5, 1}) {
      const auto indices = torch::tensor({row}, torch::kInt64);
      optimizer.zero_grad();
      ops::backward(group, mine->forward(indices).square().sum());
      optimizer.step();
      dense_optimizer.zero_grad();
      (torch::embedding(dense, indices).square().sum() * 2).backward();  // of both members
      dense_optimizer.step();
      expect_near(mine->weight, part_of(dense, group), fmt::format("row {}", row));
    }
    const auto& state =
        static_cast<torch::optim::SGDParamState&>(*optimizer.state().begin()->second);
    EXPECT_EQ(state.momentum_buffer().coalesce()._nnz(), group.rank() == 0 ? 2 : 1);

    const auto refuses = [&](torch::optim::Optimizer&& other) {
      const auto before = mine->weight.detach().clone();
      EXPECT_THAT(text_of<c10::Error>([&] { other.step(); }), HasSubstr("sparse"));
      EXPECT_TRUE(torch::equal(mine->weight, before));
    };
    optimizer.zero_grad();
    ops::backward(group, mine->forward(torch::tensor({1, 5}, torch::kInt64)).sum());
    refuses(torch::optim::SGD(mine->parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.1)));
    refuses(torch::optim::Adagrad(mine->parameters(),
                                  torch::optim::AdagradOptions(0.1).weight_decay(0.1)));
    refuses(torch::optim::Adam(mine->parameters()));
    refuses(torch::optim::AdamW(mine->parameters()));
    refuses(torch::optim::RMSprop(mine->parameters()));
  });
}

// promise: parallel_embedding.h#padding_idx
TEST(ParallelEmbedding, PaddingIsZeroAndCountsFromTheEnd) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    auto options = options_of(7);
    options.padding_idx = -2;
    ParallelEmbedding mine(group, options);
    const auto rows = mine->forward(torch::tensor({5, 4}, torch::kInt64));
    EXPECT_EQ(rows[0].abs().sum().item<double>(), 0);
    EXPECT_NE(rows[1].abs().sum().item<double>(), 0);
    ops::backward(group, rows.sum());
    const std::int64_t touched = share_of(7, 2, 3).first <= 4 ? 2 : 1;
    EXPECT_EQ(mine->weight.grad()._nnz(), job.rank() == touched ? 1 : 0);
  });
}

// promise: parallel_embedding.h#ParallelEmbedding
TEST(ParallelEmbedding, WhatLookUpsGiveToOneRowIsAddedByRankThenPosition) {
  // In float32 each order has other bits.
  const auto of_rank = [](int rank) {
    return drawn(30 + static_cast<std::uint64_t>(rank), {20, kDim})
        .mul(drawn(60, {20, 1}).mul(6).exp())
        .to(torch::kFloat32);
  };
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    ParallelEmbedding mine(group, {.rows = 4, .dim = kDim, .seed = 1});
    const auto x = mine->forward(torch::tensor({0, 3}, torch::kInt64).repeat({10}));
    ops::backward(group, (x * of_rank(job.rank())).sum());
    for (const int row : {0, 3}) {
      auto sum = torch::zeros({kDim});
      auto other = torch::zeros({kDim});
      for (int rank = 0; rank < 3; ++rank) {
        for (int i = row == 0 ? 0 : 1; i < 20; i += 2) {
          sum += of_rank(rank)[i];
          other += of_rank(2 - rank)[i];
        }
      }
      EXPECT_FALSE(torch::equal(sum, other)) << "the data do not tell orders apart";
      const auto local = row - mine->first();
      if (local < 0 || local >= mine->weight.size(0)) continue;
      const auto gradient = mine->weight.grad().to_dense()[local];
      EXPECT_TRUE(torch::equal(gradient, sum)) << row;
    }
  });
}

// promise: parallel_embedding.h#ParallelEmbedding, parallel_embedding.h#forward
TEST(ParallelEmbedding, ShapesAreAny) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    ParallelEmbedding mine(group, options_of(7));
    const auto whole = whole_of(group, options_of(7))->weight;
    const auto look_up = [&](const torch::Tensor& indices) {
      const auto rows = mine->forward(indices);
      EXPECT_TRUE(torch::equal(rows, torch::embedding(whole, indices)));
    };
    look_up(job.rank() == 0 ? torch::tensor(3, torch::kInt64) : drawn_labels(1, 7, {2, 1, 3}));
    look_up(job.rank() == 0 ? torch::empty({0, 4}, torch::kInt64)
                            : drawn_labels(2, 7, {5}).slice(0, 0, 5, 2));
    look_up(torch::empty({0}, torch::kInt64));
  });
}

TEST(ParallelEmbedding, MakesThreeCallsForwardAndOneBackward) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    ParallelEmbedding mine(group, options_of(7));
    const auto calls = group.state()->calls();
    const auto rows = mine->forward(drawn_labels(1, 7, {4 + job.rank()}));
    EXPECT_EQ(group.state()->calls(), calls + 3) << "numbers, indices, rows";
    ops::backward(group, rows.sum());
    EXPECT_EQ(group.state()->calls(), calls + 4);
    const torch::NoGradGuard off;
    EXPECT_FALSE(mine->forward(drawn_labels(1, 7, {2})).requires_grad());
    EXPECT_EQ(group.state()->calls(), calls + 7);
  });
}

// promise: parallel_embedding.h#ParallelEmbedding
TEST(ParallelEmbedding, AnIndexThatIsNoRowIsSaidOnAllAtOnceAndTheLayerWorksOn) {
  for (const std::int64_t bad : {-1, 7}) {
    on_workers(3, [bad](const Job& job) {
      const Group group(job);
      ParallelEmbedding mine(group, options_of(7));
      auto indices = drawn_labels(1 + static_cast<std::uint64_t>(job.rank()), 7, {2, 3});
      if (job.rank() == 1) {
        indices[1][1] = bad;
        EXPECT_EQ(text_of<InvalidArgument>([&] { mine->forward(indices); }),
                  fmt::format("ParallelEmbedding: index {} at position 4 is none of 7 rows", bad));
      } else {
        try {
          mine->forward(indices);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const PeerFailed& e) {
          EXPECT_EQ(e.rank(), 1);
          EXPECT_THAT(e.what(), HasSubstr("rank 1 has indices that a ParallelEmbedding of 7 rows"));
        }
      }
      if (job.rank() == 1) indices[1][1] = 6;
      const auto rows = mine->forward(indices);
      EXPECT_TRUE(
          torch::equal(rows, torch::embedding(whole_of(group, options_of(7))->weight, indices)));
      ops::backward(group, rows.sum());
    });
  }
}

// promise: parallel_embedding.h#ParallelEmbeddingImpl
TEST(ParallelEmbedding, AnotherLayerOnAnotherMemberIsAMismatchThatNamesBoth) {
  const auto with = [](const ParallelEmbeddingOptions& other) {
    return ends_of(2, [&](const Group& group) {
      const ParallelEmbedding layer(group, group.rank() == 0 ? options_of(10) : other);
    });
  };
  EXPECT_THAT(
      with(options_of(11)),
      Each("ParallelEmbedding: workers disagree about the layer: rows is 10 on rank 0, 11 on "
           "rank 1"));
  auto other = options_of(10);
  other.padding_idx = 3;
  EXPECT_THAT(with(other), Each(HasSubstr("padding_idx is none on rank 0, 3 on rank 1")));
}

TEST(ParallelEmbedding, ThatDoesNotFitIsRefusedOnAllWithTheFigures) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    EXPECT_THAT(text_of<OutOfMemory>([&] {
                  const ParallelEmbedding layer(group, {.rows = 1'000'000'000'000, .dim = 64});
                }),
                HasSubstr("ParallelEmbedding of 1000000000000 rows of 64 elements needs "));
    const ParallelEmbedding layer(group, {.rows = 10, .dim = 64});  // the group is as it was
  });
}

// promise: parallel_embedding.h#ParallelEmbedding, parallel_embedding.h#forward
TEST(ParallelEmbedding, WhatCannotBeIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto refused = [&](const ParallelEmbeddingOptions& options) {
      return text_of<InvalidArgument>([&] { const ParallelEmbedding layer(group, options); });
    };
    EXPECT_EQ(refused({.rows = 0, .dim = 2}), "ParallelEmbedding: 0 rows of 2 elements");
    EXPECT_EQ(refused({.rows = 2, .dim = 0}), "ParallelEmbedding: 2 rows of 0 elements");
    EXPECT_EQ(refused({.rows = 2, .dim = 2, .padding_idx = -3}),
              "ParallelEmbedding: padding_idx -3 is none of 2 rows");
    EXPECT_EQ(refused({.rows = 2, .dim = 2, .dtype = torch::kBool}),
              "ParallelEmbedding: parameters of type Bool");
    ParallelEmbedding layer(group, {.rows = 3, .dim = 2});
    EXPECT_THAT(text_of<InvalidArgument>([&] { layer->forward(torch::ones({2})); }),
                HasSubstr("indices must be integers of 32 or 64 bits"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { layer->forward({}); }),
                HasSubstr("indices must be integers of 32 or 64 bits"));
  });
}

}  // namespace
}  // namespace tutti::test::parallel_embedding_cases
