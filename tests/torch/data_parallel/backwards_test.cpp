// Unusual backwards and unusual hooks: each works or has its clear error.

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/training.h"

namespace tutti::test::backwards_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A layer whose backward recomputes its forward and runs a backward of its own through it, as
/// reentrant checkpointing does.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer.get());
    return layer->forward(x.detach());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode with_graph(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

struct Checkpointed {
  torch::nn::Linear first{6, 8};
  torch::nn::Linear second{8, 3};
  torch::nn::Sequential all{first, second};
  torch::Tensor loss(const Batch& batch, std::int64_t begin, std::int64_t end, bool recompute) {
    const auto x = batch.x.slice(0, begin, end);
    const auto hidden = first->forward(x).tanh();
    const auto out = recompute ? Recomputed::apply(hidden, second) : second->forward(hidden);
    return torch::mse_loss(out, batch.y.slice(0, begin, end));
  }
};

TEST(Backwards, ABackwardInsideTheBackwardWorksInAScopeAndIsAnErrorOutside) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    Checkpointed net;
    DataParallel parallel(job, *net.all);
    const Batch batch(4, 1);
    const auto begin = 2 * job.rank();
    const auto outside = text_of([&] { net.loss(batch, begin, begin + 2, true).backward(); });
    EXPECT_THAT(outside, HasSubstr("inside the backward (reentrant checkpointing)"));
    EXPECT_THAT(outside, HasSubstr("micro_batch()"));
    // Nothing of it is left: the next step is right.
    net.all->zero_grad();
    auto scope = parallel.accumulate({.micro_batches = 1});
    scope.micro_batch(1, [&] { net.loss(batch, begin, begin + 2, true).backward(); });
    scope.finish();
    std::vector<torch::Tensor> reduced;
    for (const auto& p : net.all->parameters()) reduced.push_back(p.grad().clone());
    const auto joined =
        torch::autograd::grad({net.loss(batch, 0, 4, false)}, net.all->parameters());
    for (std::size_t p = 0; p < joined.size(); ++p) {
      EXPECT_TRUE(torch::allclose(reduced[p], joined[p], 1e-5, 1e-6)) << p;
    }
  });
}

TEST(Backwards, TwoLossesOfOneForwardAreOneBackwardOrOneScope) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    const auto losses = [&] {
      const auto out = model->forward(batch.x.slice(0, 2 * job.rank(), 2 * job.rank() + 2));
      return std::pair(out.square().mean(), out.abs().mean());
    };
    const auto [a, b] = losses();
    (a + b).backward();
    const auto at_once = model->parameters()[0].grad().clone();
    model->zero_grad();
    const auto [c, d] = losses();
    auto scope = parallel.accumulate({.micro_batches = 1});
    scope.micro_batch(1, [&, c = c, d = d] {
      c.backward({}, /*keep_graph=*/true);
      d.backward();
    });
    scope.finish();
    EXPECT_TRUE(torch::allclose(at_once, model->parameters()[0].grad(), 1e-5, 1e-6));
    // Two backwards outside a scope are two steps, and the second would add to a reduced gradient.
    model->zero_grad();
    const auto [e, f] = losses();
    e.backward({}, /*keep_graph=*/true);
    EXPECT_THAT(text_of([&, f = f] { f.backward(); }), HasSubstr("zero_grad()"));
  });
}

TEST(Backwards, HooksOfTheUserOnTensorsRunFirst) {
  on_workers(2, [](const Job& job) {
    const auto p = torch::ones({5}).requires_grad_();
    DataParallel parallel(Group(job), {{"p", p}});
    p.register_hook([](const torch::Tensor& gradient) { return gradient * 10; });
    (p * (job.rank() + 1)).sum().backward();
    EXPECT_TRUE(torch::equal(p.grad(), torch::full({5}, 15.0)));
  });
}

struct Stranger : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::Tensor&) override {}
};

TEST(Backwards, AnOccupiedOrReplacedHookSlotIsAnError) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto p = torch::ones({5}).requires_grad_();
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<Stranger>());
    EXPECT_THAT(text_of([&] {
                  DataParallel parallel(group, {{"p", p}});
                }),
                HasSubstr("parameter \"p\" of \"model\" has a post-accumulate hook of its own"));
    torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
    DataParallel parallel(group, {{"p", p}});
    p.sum().backward();
    p.mutable_grad().reset();
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<Stranger>());
    EXPECT_THAT(text_of([&] { p.sum().backward(); }),
                HasSubstr("parameter \"p\" of \"model\": its post-accumulate hook was replaced"));
  });
}

TEST(Backwards, APartOfTheOutputThatTheLossIgnoresIsUntouched) {
  on_workers(2, [](const Job& job) {
    torch::nn::Linear a(6, 3);
    torch::nn::Linear b(6, 3);
    torch::nn::Sequential both(a, b);
    DataParallel parallel(job, *both);
    for (std::uint64_t step = 1; step <= 6; ++step) {
      both->zero_grad();
      const Batch batch(2, step);
      const auto used = a->forward(batch.x);
      const auto ignored = b->forward(batch.x);
      const bool both_used = step % 2 == 0;
      (both_used ? (used + ignored).sum() : used.sum()).backward();
      EXPECT_EQ(b->weight.grad().defined(), both_used);
      EXPECT_EQ(parallel.report().parameters_touched, both_used ? 4 : 2);
    }
  });
}

// Every pair of workers and micro-batches picks its own layer (a regression that others had: what
// only earlier micro-batches used was never reduced).
TEST(Backwards, LayersChosenByWorkerAndMicroBatchAllArrive) {
  on_workers(2, [](const Job& job) {
    torch::nn::Sequential layers;
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(1, 1));
    DataParallel parallel(job, *layers);
    auto scope = parallel.accumulate({.micro_batches = 2});
    for (std::size_t micro = 0; micro < 2; ++micro) {
      const auto which = static_cast<std::size_t>(job.rank()) * 2 + micro;
      scope.micro_batch(1, [&] {
        return layers[which]->as<torch::nn::Linear>()->forward(
            torch::full({1, 1}, static_cast<double>(which + 1)));
      });
    }
    scope.finish();
    for (std::size_t i = 0; i < 4; ++i) {
      const auto& layer = *layers[i]->as<torch::nn::Linear>();
      EXPECT_EQ(layer.weight.grad().item<double>(), static_cast<double>(i + 1) / 4);
      EXPECT_EQ(layer.bias.grad().item<double>(), 0.25);
    }
  });
}

// promise: data_parallel.h#micro_batch
TEST(Backwards, ALeafOfWeightZeroTouchesNothingEvenWhenItIsNaN) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    auto scope = parallel.accumulate({.micro_batches = 2});
    scope.micro_batch(0, [&] { return batch.loss(model, 0, 0); });  // a mean over no rows
    scope.micro_batch(3, [&] { return batch.loss(model, 0, 4); });
    scope.finish();
    EXPECT_EQ(parallel.report().weight, 6);
    for (const auto& p : model->parameters()) {
      EXPECT_TRUE(torch::isfinite(p.grad()).all().item<bool>());
    }
    // The same for a worker's only backward.
    model->zero_grad();
    parallel.next_weight(job.rank() == 0 ? 0 : 1);
    batch.loss(model, 0, job.rank() == 0 ? 0 : 4).backward();
    for (const auto& p : model->parameters()) {
      EXPECT_TRUE(torch::isfinite(p.grad()).all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace tutti::test::backwards_cases
