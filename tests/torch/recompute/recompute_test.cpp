// Segments that run again in backward: gradients, random numbers, and what is refused.

#include "tutti/recompute.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>

#include <cstring>

#include "torch/training.h"

namespace tutti::test::recompute_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool same_bytes(const torch::Tensor& one, const torch::Tensor& other) {
  if (!one.defined() || !other.defined()) return one.defined() == other.defined();
  const auto a = one.detach().cpu().contiguous();
  const auto b = other.detach().cpu().contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Attention and an MLP, with dropout.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : attention(register_module(
            "attention",
            torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(width, 2)))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    ++runs;
    const auto y = norm->forward(x + std::get<0>(attention->forward(x, x, x)));
    return y + dropout->forward(down->forward(torch::gelu(up->forward(y))));
  }
  torch::nn::MultiheadAttention attention;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::nn::Dropout dropout;
  int runs = 0;
};
TORCH_MODULE(Block);

/// What a training step gives: the loss, each parameter's gradient, the input's, and a number drawn
/// afterwards.
TensorList step_of(const std::vector<Block>& blocks, const torch::Tensor& x,
                   const std::function<torch::Tensor(Block&, const torch::Tensor&)>& call) {
  torch::manual_seed(7);
  const auto own = x.detach().clone().requires_grad_();
  auto y = own * 2;
  std::vector<Block> all = blocks;
  for (auto& block : all) {
    block->zero_grad();
    y = call(block, y);
  }
  const auto loss = y.square().mean();
  loss.backward();
  TensorList result{loss.detach(), own.grad().clone(), torch::rand({3})};
  for (const auto& block : blocks) {
    for (const auto& parameter : block->parameters()) result.push_back(parameter.grad().clone());
  }
  return result;
}

void expect_same(const TensorList& one, const TensorList& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bytes(one[i], other[i])) << i;
}

torch::Tensor plain(Block& block, const torch::Tensor& x) { return block->forward(x); }

// promise: recompute.h#recompute
TEST(Recompute, GradientsAreThoseOfThePlainRunByteForByteAndDropoutDrawsTheSame) {
  on_workers(1, [](const Job& /*job*/) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    const std::vector<Block> blocks{Block(8), Block(8), Block(8)};
    const auto x = torch::randn({5, 4, 8});
    const auto expected = step_of(blocks, x, plain);
    for (auto block : blocks) block->runs = 0;
    expect_same(step_of(blocks, x,
                        [](Block& block, const torch::Tensor& y) { return recompute(block, y); }),
                expected);
    for (const auto& block : blocks) EXPECT_EQ(block->runs, 2);
    expect_same(step_of(blocks, x,
                        [](Block& block, const torch::Tensor& y) {
                          return recompute(
                              [block](const torch::Tensor& z) mutable {
                                return recompute({.name = "inner"}, block, z);  // nested
                              },
                              y);
                        }),
                expected);
  });
}

// promise: recompute.h#recompute
TEST(Recompute, KeepsNothingOfTheSegmentBetweenForwardAndBackward) {
  on_workers(1, [](const Job& /*job*/) {
    using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
    std::vector<Weak> made;
    const auto of = [&](bool again) {
      const auto segment = [&](const torch::Tensor& z) {
        const auto kept = z.exp();  // by its own backward
        made.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            kept.storage().unsafeGetStorageImpl()));
        return kept * 2;
      };
      const auto x = torch::ones({2}).requires_grad_();
      const auto y = again ? recompute(segment, x) : segment(x);
      EXPECT_EQ(made.back().expired(), again);
      y.sum().backward();
      return x.grad();
    };
    EXPECT_TRUE(same_bytes(of(false), of(true)));
    EXPECT_EQ(made.size(), 3U);
    for (const auto& one : made) EXPECT_TRUE(one.expired());
  });
}

// promise: recompute.h#recompute
TEST(Recompute, TakesAndGivesAnyNumberOfTensors) {
  on_workers(1, [](const Job& /*job*/) {
    const auto x = torch::randn({3, 2}).requires_grad_();
    const auto w = torch::randn({2}).requires_grad_();
    const auto index = here(torch::tensor({2, 0}, torch::kInt64));
    const auto segment = [](const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& i,
                            const torch::Tensor& none) {
      EXPECT_FALSE(none.defined());
      const auto rows = a.index_select(0, i);
      return std::tuple(rows * b, std::pair(i + 1, rows.sum()), torch::Tensor(), a);
    };
    const auto gradients = [&](const auto& results) {
      const auto& [product, inner, none, same] = results;
      EXPECT_FALSE(none.defined());
      EXPECT_FALSE(inner.first.requires_grad());
      EXPECT_TRUE(inner.first.equal(index + 1));
      return torch::autograd::grad({(product.sin().sum() + inner.second * same.sum())}, {x, w});
    };
    const auto expected = gradients(segment(x, w, index, torch::Tensor()));
    const auto found = gradients(recompute(segment, x, w, index, torch::Tensor()));
    expect_same(found, expected);
    // A list, of which backward comes to some; and no gradient for an input that needs none.
    const auto list = recompute(
        [](const torch::Tensor& a, const torch::Tensor& b) {
          return TensorList{a * 2, b * 3, a + b};
        },
        x, torch::ones({2}));
    ASSERT_EQ(list.size(), 3U);
    EXPECT_FALSE(list[1].requires_grad());
    EXPECT_TRUE(torch::autograd::grad({list[2].sum()}, {x})[0].equal(torch::ones({3, 2})));
  });
}

// promise: recompute.h#recompute
TEST(Recompute, AnLstmIsASegment) {
  on_workers(1, [](const Job& /*job*/) {
    torch::manual_seed(3);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2).dropout(0.5));
    const auto x = torch::randn({6, 2, 3});
    const auto of = [&](bool again) {
      torch::manual_seed(9);
      lstm->zero_grad();
      const auto [y, state] = again ? recompute(lstm, x) : lstm->forward(x);
      (y.sum() + std::get<1>(state).square().sum()).backward();
      TensorList all;
      for (const auto& parameter : lstm->parameters()) all.push_back(parameter.grad().clone());
      return all;
    };
    expect_same(of(true), of(false));
  });
}

// promise: recompute.h#recompute
TEST(Recompute, HooksOfAParameterFireOnceOnTheWholeGradient) {
  on_workers(1, [](const Job& /*job*/) {
    torch::nn::Linear tied(3, 3);
    int fired = 0;
    torch::Tensor seen;
    tied->weight.register_hook([&](const torch::Tensor& gradient) {
      ++fired;
      seen = gradient.clone();
    });
    auto y = torch::randn({2, 3});
    for (int i = 0; i < 2; ++i) {
      y = recompute([tied](const torch::Tensor& z) mutable { return tied->forward(z).tanh(); }, y);
    }
    y.sum().backward();
    EXPECT_EQ(fired, 1);
    EXPECT_TRUE(seen.equal(tied->weight.grad()));
    // They are there again afterwards.
    y = recompute(tied, torch::ones({1, 3}));
    y.sum().backward();
    EXPECT_EQ(fired, 2);
  });
}

// promise: recompute.h#recompute
TEST(Recompute, OfAParameterThatManySegmentsUseGradientsMayBeAddedInAnotherOrder) {
  on_workers(1, [](const Job& /*job*/) {
    torch::manual_seed(5);
    torch::nn::Linear tied(8, 8);
    const auto of = [&](bool again) {
      tied->zero_grad();
      auto y = torch::ones({4, 8});
      auto twice = [tied](const torch::Tensor& z) mutable {
        return tied->forward(tied->forward(z).tanh()).tanh();
      };
      for (int i = 0; i < 3; ++i) y = again ? recompute(twice, y) : twice(y);
      y.sum().backward();
      return tied->weight.grad().clone();
    };
    EXPECT_TRUE(torch::allclose(of(true), of(false), 1e-5, 1e-6));
  });
}

// promise: recompute.h#recompute
TEST(Recompute, BackwardMayComeTwiceWhereTheGraphIsKept) {
  on_workers(1, [](const Job& /*job*/) {
    torch::nn::Linear linear(3, 3);
    const auto y = recompute(linear, torch::ones({1, 3})).sum();
    y.backward({}, /*retain_graph=*/true);
    const auto once = linear->weight.grad().clone();
    y.backward();
    EXPECT_TRUE(linear->weight.grad().equal(2 * once));
    EXPECT_THAT(text_of<c10::Error>([&] { y.backward(); }), HasSubstr("second time"));
    EXPECT_THAT(text_of<Unsupported>([&] {
                  const auto z = recompute(linear, torch::ones({1, 3}).requires_grad_()).sum();
                  torch::autograd::grad({z}, {linear->weight}, {}, true, /*create_graph=*/true);
                }),
                HasSubstr("a second derivative"));
  });
}

// promise: recompute.h#RecomputeOptions
TEST(Recompute, ABatchNormCountsABatchOnce) {
  on_workers(1, [](const Job& /*job*/) {
    torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(3));
    torch::nn::BatchNorm1d other(torch::nn::BatchNormOptions(3));
    const auto x = torch::randn({8, 3}).requires_grad_();
    const auto of = [&](torch::nn::BatchNorm1d& one, bool again) {
      for (int i = 0; i < 2; ++i) {
        const auto y = again ? recompute(one, x) : one->forward(x);
        const auto z = again ? recompute(one, y * x) : one->forward(y * x);
        z.square().mul(x).sum().backward();
      }
      return TensorList{one->running_mean, one->running_var, one->num_batches_tracked,
                        one->weight.grad()};
    };
    expect_same(of(norm, true), of(other, false));
    // As a part of what a lambda runs it may be named.
    const auto y = recompute(
        {.modules = {norm.ptr()}},
        [norm](const torch::Tensor& z) mutable { return norm->forward(z); }, x);
    const auto before = norm->num_batches_tracked.item<std::int64_t>();
    y.sum().backward();
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), before);
  });
}

// promise: recompute.h#recompute
TEST(Recompute, NothingRunsAgainWhereNoGradientIsRecorded) {
  on_workers(1, [](const Job& /*job*/) {
    Block block(8);
    const auto x = torch::randn({2, 1, 8});
    {
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(recompute(block, x).requires_grad());
    }
    for (auto& parameter : block->parameters()) parameter.requires_grad_(false);
    EXPECT_FALSE(recompute(block, x).requires_grad());
    EXPECT_EQ(block->runs, 2);
  });
}

// promise: recompute.h#recompute
TEST(Recompute, RunsUnderTheSameAutocast) {
  torch::nn::Linear first(4, 4);
  torch::nn::Linear second(4, 4);
  const auto x = torch::randn({3, 4});
  const auto of = [&](bool again) {
    first->zero_grad();
    second->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto y = again ? recompute(first, x) : first->forward(x);
    y = again ? recompute(second, y) : second->forward(y);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.sum().backward();
    return TensorList{first->weight.grad(), second->weight.grad(), y.detach()};
  };
  expect_same(of(true), of(false));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  // Autocast keeps a weight's cast for its next use: to a segment that is a tensor from outside.
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto outside = first->forward(x);
  const auto within = recompute(first, x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(same_bytes(outside, within));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// promise: recompute.h#recompute
TEST(Recompute, ACapturedTensorThatNeedsAGradientIsRefused) {
  on_workers(1, [](const Job& /*job*/) {
    const auto x = torch::ones({2}).requires_grad_();
    const auto computed = x * 2;
    const auto with = [&](const torch::Tensor& captured) {
      return recompute(
          {.name = "encoder"}, [captured](const torch::Tensor& z) { return z * captured; },
          torch::ones({2}));
    };
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { with(computed); }),
        AllOf(HasSubstr("recompute \"encoder\": the segment uses a tensor that was computed "
                        "outside of it (MulBackward1)"),
              HasSubstr("give it as an input, or detach() it")));
    EXPECT_FALSE(with(computed.detach()).requires_grad());
    with(x).sum().backward();  // a leaf is a parameter
    EXPECT_TRUE(x.grad().equal(torch::ones({2})));
  });
}

// promise: recompute.h#recompute
TEST(Recompute, ASegmentThatChangesItsInputIsRefused) {
  on_workers(1, [](const Job& /*job*/) {
    const auto change = [](const torch::Tensor& z) { return torch::Tensor(z).mul_(2); };
    for (const bool learns : {false, true}) {
      const auto x = torch::ones({2}).requires_grad_(learns);
      const auto text = text_of<InvalidArgument>([&] { recompute({.name = "norm"}, change, x); });
      EXPECT_THAT(text,
                  AllOf(HasSubstr("recompute \"norm\": the segment changes"),
                        HasSubstr("in place, which it would find changed when it runs again")));
    }
    // After the segment it is autograd's own check that says so.
    auto y = torch::ones({2}).requires_grad_() * 1;
    torch::nn::Linear linear(2, 2);
    const auto z = recompute(linear, y);
    y.mul_(2);
    EXPECT_THAT(text_of<c10::Error>([&] { z.sum().backward(); }),
                HasSubstr("modified by an inplace operation"));
  });
}

// promise: recompute.h#recompute
TEST(Recompute, ASegmentThatRunsOtherwiseTheSecondTimeIsRefused) {
  on_workers(1, [](const Job& /*job*/) {
    torch::nn::Linear linear(2, 2);
    torch::nn::Linear other(2, 2);
    int calls = 0;
    const auto refusal_of = [&](const std::function<TensorList(const TensorList&)>& segment) {
      calls = 0;
      const auto y = recompute_list({.name = "decoder"}, segment, {torch::ones({1, 2})});
      return text_of<InvalidArgument>([&] { y.at(0).sum().backward(); });
    };
    EXPECT_THAT(
        refusal_of(
            [&](const TensorList& in) { return TensorList{linear->forward(in[0]) * (++calls)}; }),
        AllOf(HasSubstr("recompute \"decoder\": run again, the segment gives another result "
                        "0: it draws from a generator that is not among the options, or "
                        "reads what has changed since")));
    EXPECT_THAT(refusal_of([&](const TensorList& in) {
                  TensorList all{linear->forward(in[0])};
                  if (++calls == 2) all.push_back(in[0]);
                  return all;
                }),
                HasSubstr("gives 2 tensors, at first 1"));
    other->weight.set_data(linear->weight.detach().clone());
    other->bias.set_data(linear->bias.detach().clone());
    EXPECT_THAT(refusal_of([&](const TensorList& in) {
                  return TensorList{(++calls == 1 ? linear : other)->forward(in[0])};
                }),
                HasSubstr("uses other parameters"));
  });
}

/// One whose state is nobody's.
struct Stateless : at::CPUGeneratorImpl {
  using CPUGeneratorImpl::CPUGeneratorImpl;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    throw std::runtime_error("a device has it");
  }
};

// promise: recompute.h#generators
TEST(Recompute, GeneratorsOfTheProgramAreNamed) {
  on_workers(1, [](const Job& /*job*/) {
    torch::nn::Linear linear(4, 4);
    auto own = at::make_generator<at::CPUGeneratorImpl>(5);
    const auto noisy = [&](const torch::Tensor& x) {
      return linear->forward(x) * torch::rand({4}, own);
    };
    const auto x = torch::ones({1, 4});
    const auto expected = [&] {
      own.set_current_seed(5);
      noisy(x).sum().backward();
      const auto gradient = linear->weight.grad().clone();
      linear->zero_grad();
      own.set_current_seed(5);
      return gradient;
    }();
    recompute({.generators = {own}}, noisy, x).sum().backward();
    EXPECT_TRUE(linear->weight.grad().equal(expected));
    const auto after = torch::rand({1}, own);
    own.set_current_seed(5);
    torch::rand({4}, own);
    EXPECT_TRUE(torch::rand({1}, own).equal(after)) << "the second run has drawn nothing";
    EXPECT_THAT(text_of<InvalidArgument>([&] { recompute(noisy, x).sum().backward(); }),
                HasSubstr("draws from a generator that is not among the options"));
    EXPECT_THAT(
        text_of<Unsupported>([&] {
          recompute({.generators = {own, at::make_generator<Stateless>(1)}}, noisy, x);
        }),
        AllOf(HasSubstr("the state of generator 1 cannot be taken"), HasSubstr("a device has it")));
  });
}

// promise: recompute.h#recompute
TEST(Recompute, TensorsThatItHasNoBytesOfAreRefused) {
  const auto same = [](const torch::Tensor& x) { return x; };
  EXPECT_THAT(
      text_of<Unsupported>([&] { recompute(same, torch::ones({2}, torch::device(torch::kMeta))); }),
      HasSubstr("input 0 is on meta, and neither on the CPU nor on a device"));
  EXPECT_THAT(text_of<Unsupported>([&] { recompute(same, torch::ones({2}).to_sparse()); }),
              HasSubstr("input 0 is not dense"));
}

}  // namespace
}  // namespace tutti::test::recompute_cases
