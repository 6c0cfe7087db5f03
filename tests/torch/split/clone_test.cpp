// clone() of a model that has layers of Tutti: a copy of all that they have, or an error.

#include "torch/training.h"

namespace tutti::test::clone_cases {
namespace {

using ::testing::HasSubstr;

enum class Layer { sync_batch_norm, parallel_linear, parallel_embedding, recompute_sequential };

struct Net : torch::nn::Cloneable<Net> {
  Net(Group group, Layer layer) : group_(std::move(group)), layer_(layer) { reset(); }
  void reset() override {
    register_module("first", torch::nn::Linear(4, 4));
    switch (layer_) {
      case Layer::sync_batch_norm:
        norm = register_module("own", SyncBatchNorm(group_, torch::nn::BatchNormOptions(4)));
        return;
      case Layer::parallel_linear:
        register_module("own",
                        ParallelLinear(group_, ParallelLinearOptions{.features = 4, .classes = 7}));
        return;
      case Layer::parallel_embedding:
        register_module("own",
                        ParallelEmbedding(group_, ParallelEmbeddingOptions{.rows = 9, .dim = 3}));
        return;
      case Layer::recompute_sequential:
        sequence = register_module(
            "own", RecomputeSequential(
                       torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                                             torch::nn::Tanh(), torch::nn::Linear(4, 4)),
                       RecomputeSequentialOptions{.segments = 2}));
        return;
    }
  }
  SyncBatchNorm norm{nullptr};
  RecomputeSequential sequence{nullptr};

 private:
  Group group_;
  Layer layer_;
};

/// Other values than a fresh layer has.
void change(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) parameter.add_(0.5);
  for (auto& buffer : net.buffers()) buffer.add_(3);
}

TEST(Clone, HasCopiesOfWhatTheLayersOfTuttiHave) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group world(job);
      for (const auto layer : {Layer::sync_batch_norm, Layer::parallel_linear,
                               Layer::parallel_embedding, Layer::recompute_sequential}) {
        SCOPED_TRACE(static_cast<int>(layer));
        const auto net = std::make_shared<Net>(world, layer);
        net->eval();
        change(*net);
        const auto copy = std::dynamic_pointer_cast<Net>(net->clone());
        const auto expect_equal = [](const auto& items, const auto& copies) {
          ASSERT_EQ(items.keys(), copies.keys());
          for (const auto& item : items) {
            EXPECT_TRUE(torch::equal(item.value(), copies[item.key()])) << item.key();
            EXPECT_FALSE(item.value().is_alias_of(copies[item.key()])) << item.key();
          }
        };
        expect_equal(net->named_parameters(), copy->named_parameters());
        expect_equal(net->named_buffers(), copy->named_buffers());
        for (const auto& module : copy->modules()) EXPECT_FALSE(module->is_training());
      }
    });
  }
}

TEST(Clone, ComputesWithItsOwnCopies) {
  on_workers(2, [](const Job& job) {
    const Group world(job);
    const auto x = torch::ones({3, 4});
    const auto norms = std::make_shared<Net>(world, Layer::sync_batch_norm);
    change(*norms);
    norms->eval();
    const auto copy = std::dynamic_pointer_cast<Net>(norms->clone());
    EXPECT_TRUE(torch::equal(copy->norm->forward(x), norms->norm->forward(x)));
    EXPECT_TRUE(copy->norm->running_mean.is_alias_of(copy->norm->named_buffers()["running_mean"]));
    const auto before = norms->norm->forward(x);
    change(*copy);
    EXPECT_TRUE(torch::equal(norms->norm->forward(x), before));

    const auto layers = std::make_shared<Net>(world, Layer::recompute_sequential);
    change(*layers);
    layers->sequence->set_segments({{0, 1, true}, {1, 4, false}});
    const auto twin = std::dynamic_pointer_cast<Net>(layers->clone());
    EXPECT_EQ(twin->sequence->segments().size(), 2u);
    EXPECT_EQ(twin->sequence->segments()[0].last, 1);
    EXPECT_TRUE(torch::equal(twin->sequence->forward(x), layers->sequence->forward(x)));
  });
}

struct Classifier : torch::nn::Cloneable<Classifier> {
  explicit Classifier(Group group) : group_(std::move(group)) { reset(); }
  void reset() override { register_module("head", ParallelCrossEntropy(group_, 4, 9, Sgd{})); }

 private:
  Group group_;
};

TEST(Clone, OfALayerThatKeepsItsRowsItselfIsRefused) {
  on_workers(2, [](const Job& job) {
    const auto net = std::make_shared<Classifier>(Group(job));
    EXPECT_THAT(text_of<Unsupported>([&] { net->clone(); }), HasSubstr("clone() of a model"));
  });
}

}  // namespace
}  // namespace tutti::test::clone_cases
