// Differentiable collectives, under finite differences across ranks.

#include "tutti/ops.h"

#include <limits>
#include <numeric>

#include "torch/training.h"

namespace tutti::test::ops_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Rows = std::vector<std::int64_t>;
using Pairs = std::vector<std::pair<int, int>>;
using Op = std::function<torch::Tensor(const Group&, const torch::Tensor&)>;

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(torch::kFloat64);
}

/// Every rank weighs its result in its own way, each element otherwise, and not linearly.
torch::Tensor loss_of(const torch::Tensor& result, int rank) {
  const auto weights = draw(100 + static_cast<std::uint64_t>(rank), result.sizes());
  return (result * weights).sum() + (result * result).sum() * 0.5;
}

double sum_over(const Group& group, double mine) {
  group.all_reduce({&mine, 1, DType::float64}, Reduction::sum);
  return mine;
}

/// What `op` gives each rank's input as a gradient is how the sum of all ranks' losses changes with
/// it.
void expect_gradient(const Group& group, const torch::Tensor& x, const Op& op,
                     const std::string& what) {
  constexpr double kStep = 1e-6;
  auto input = x.clone().requires_grad_();
  const auto result = op(group, input);
  EXPECT_TRUE(result.requires_grad()) << what;
  ops::backward(group, loss_of(result, group.rank()));
  const auto gradient = input.grad().defined() ? input.grad() : torch::zeros_like(x);
  EXPECT_EQ(gradient.sizes(), x.sizes()) << what;
  const torch::NoGradGuard off;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::int64_t elements = x.numel();
    group.broadcast({&elements, 1, DType::int64}, rank);
    for (std::int64_t i = 0; i < elements; ++i) {
      double sides[2];
      for (const int side : {0, 1}) {
        auto moved = x.clone();
        if (rank == group.rank()) moved.view(-1)[i] += side == 0 ? -kStep : kStep;
        sides[side] = sum_over(group, loss_of(op(group, moved), group.rank()).item<double>());
      }
      if (rank != group.rank()) continue;
      const double wanted = (sides[1] - sides[0]) / (2 * kStep);
      EXPECT_NEAR(gradient.view(-1)[i].item<double>(), wanted, 1e-6 * (1 + std::abs(wanted)))
          << what << ", rank " << rank << " of " << group.size() << ", element " << i;
    }
  }
}

/// Rows of each member: several, none, one.
Rows uneven(int size) {
  Rows rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back((rank + 2) % 3);
  return rows;
}
std::int64_t sum_of(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

class OpsOf : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  void on_all(const std::function<void(const Group&)>& body) const {
    on_workers(ranks(), [&](const Job& job) { body(Group(job)); });
  }
  static torch::Tensor mine(const Group& group, torch::IntArrayRef sizes) {
    return draw(static_cast<std::uint64_t>(group.rank()) + 7, sizes);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, OpsOf, ::testing::Values(1, 2, 3, 5));

// promise: ops.h#all_reduce
TEST_P(OpsOf, EveryReductionHasItsGradient) {
  on_all([](const Group& group) {
    for (const auto reduction :
         {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min, Reduction::product}) {
      expect_gradient(
          group, mine(group, {2, 3}),
          [=](const Group& g, const torch::Tensor& x) { return ops::all_reduce(g, x, reduction); },
          std::string(name_of(reduction)));
    }
  });
}

// promise: ops.h#all_reduce
TEST_P(OpsOf, AProductWithZerosHasItsGradient) {
  on_all([](const Group& group) {
    auto x = mine(group, {4});
    x[0] = 0;                         // of all members
    if (group.rank() == 0) x[1] = 0;  // of one
    if (group.rank() <= 1) x[2] = 0;  // of two
    expect_gradient(
        group, x,
        [](const Group& g, const torch::Tensor& t) {
          return ops::all_reduce(g, t, Reduction::product);
        },
        "product");
  });
}

// promise: ops.h#all_reduce
TEST_P(OpsOf, TheLowestRankOfEqualMaximaHasTheGradient) {
  on_all([](const Group& group) {
    for (const auto reduction : {Reduction::max, Reduction::min}) {
      auto x = here(torch::tensor({1.0, 2.0, std::nan("")}, torch::kFloat64)).requires_grad_();
      const auto y = ops::all_reduce(group, x, reduction);
      ops::backward(group, y.sum());
      EXPECT_TRUE(torch::equal(
          x.grad(), torch::full({3}, group.rank() == 0 ? group.size() : 0.0, torch::kFloat64)));
    }
  });
}

// promise: ops.h#broadcast, ops.h#gather, ops.h#scatter
TEST_P(OpsOf, WhatGoesToARootOrFromItHasItsGradient) {
  on_all([](const Group& group) {
    const int root = group.size() / 2;
    const auto rows = uneven(group.size());
    for (const auto reduction : {Reduction::sum, Reduction::mean}) {
      expect_gradient(
          group, mine(group, {2, 2}),
          [=](const Group& g, const torch::Tensor& x) {
            return ops::reduce(g, x, reduction, root);
          },
          "reduce");
    }
    expect_gradient(
        group, mine(group, {2, 2}),
        [=](const Group& g, const torch::Tensor& x) { return ops::broadcast(g, x, root); },
        "broadcast");
    expect_gradient(
        group, mine(group, {rows[static_cast<std::size_t>(group.rank())], 2}),
        [=](const Group& g, const torch::Tensor& x) { return ops::gather(g, x, root); }, "gather");
    expect_gradient(
        group, mine(group, {group.rank() == root ? sum_of(rows) : 0, 2}),
        [=](const Group& g, const torch::Tensor& x) { return ops::scatter(g, x, rows, root); },
        "scatter");
  });
}

// promise: ops.h#all_gather, ops.h#all_to_all, ops.h#exchange_rows
// promise: ops.h#reduce_scatter
TEST_P(OpsOf, RowsOfUnequalNumbersHaveTheirGradient) {
  on_all([](const Group& group) {
    const auto rows = uneven(group.size());
    const auto own = rows[static_cast<std::size_t>(group.rank())];
    expect_gradient(
        group, mine(group, {own, 2}),
        [](const Group& g, const torch::Tensor& x) { return ops::all_gather(g, x); }, "all-gather");
    for (const auto reduction : {Reduction::sum, Reduction::mean}) {
      expect_gradient(
          group, mine(group, {sum_of(rows), 2}),
          [=](const Group& g, const torch::Tensor& x) {
            return ops::reduce_scatter(g, x, reduction, rows);
          },
          "reduce-scatter");
      expect_gradient(
          group, mine(group, {2 * group.size(), 2}),
          [=](const Group& g, const torch::Tensor& x) {
            return ops::reduce_scatter(g, x, reduction);
          },
          "reduce-scatter of equal shares");
    }
    Rows given;
    for (int to = 0; to < group.size(); ++to) given.push_back((group.rank() + 2 * to) % 3);
    const auto taken = ops::exchange_rows(group, given);
    for (int from = 0; from < group.size(); ++from) {
      EXPECT_EQ(taken[static_cast<std::size_t>(from)], (from + 2 * group.rank()) % 3);
    }
    expect_gradient(
        group, mine(group, {sum_of(given), 2}),
        [=](const Group& g, const torch::Tensor& x) { return ops::all_to_all(g, x, given, taken); },
        "all-to-all");
  });
}

// promise: ops.h#receive, ops.h#send
TEST_P(OpsOf, MessagesHaveTheirGradient) {
  if (ranks() == 1) {
    return on_all([](const Group& group) {
      EXPECT_THROW(ops::send(group, torch::ones({3}), 0), InvalidArgument) << "nobody to send to";
    });
  }
  on_all([](const Group& group) {
    const int last = group.size() - 1;
    Pairs pairs;
    for (int rank = 0; rank < last; ++rank) pairs.emplace_back(rank, rank + 1);
    group.connect(pairs);
    // Each stage multiplies what it gets by what it has.
    expect_gradient(
        group, mine(group, {3}),
        [=](const Group& g, const torch::Tensor& x) {
          auto y = x;
          if (g.rank() > 0) y = y * ops::receive(g, x, g.rank() - 1);
          return g.rank() < last ? ops::send(g, y, g.rank() + 1) : y;
        },
        "send and receive");
  });
}

// Megatron's pair: a matrix product whose inner dimension is split, of a loss that all compute.
// promise: ops.h#all_reduce, ops.h#copy_to_group, ops.h#reduce_from_group
TEST_P(OpsOf, ASplitProductHasTheGradientsOfTheWholeOne) {
  on_all([](const Group& group) {
    constexpr std::int64_t kInner = 3;
    const auto whole = kInner * group.size();
    const auto x = draw(1, {4, 5});
    const auto in = draw(2, {5, whole}).requires_grad_();
    const auto out = draw(3, {whole, 2}).requires_grad_();
    auto input = x.clone().requires_grad_();
    (input.matmul(in).tanh().matmul(out)).square().sum().backward();
    const auto begin = group.rank() * kInner;
    auto my_in = in.detach().slice(1, begin, begin + kInner).clone().requires_grad_();
    auto my_out = out.detach().slice(0, begin, begin + kInner).clone().requires_grad_();
    auto mine = x.clone().requires_grad_();
    const auto partial = ops::copy_to_group(group, mine).matmul(my_in).tanh().matmul(my_out);
    ops::backward(group, ops::reduce_from_group(group, partial).square().sum());
    EXPECT_TRUE(torch::allclose(mine.grad(), input.grad(), 1e-12, 1e-12));
    EXPECT_TRUE(
        torch::allclose(my_in.grad(), in.grad().slice(1, begin, begin + kInner), 1e-12, 1e-12));
    EXPECT_TRUE(
        torch::allclose(my_out.grad(), out.grad().slice(0, begin, begin + kInner), 1e-12, 1e-12));
  });
}

// promise: ops.h#all_reduce
TEST(Ops, AnInputOfOneMemberAloneMayNeedAGradient) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto x = torch::ones({2}, torch::kFloat64).requires_grad_(job.rank() == 1);
    const auto y = ops::all_reduce(group, x, Reduction::sum);
    EXPECT_TRUE(y.requires_grad());
    ops::backward(group, (y * (job.rank() + 1)).sum());
    EXPECT_EQ(x.grad().defined(), job.rank() == 1);
    if (job.rank() == 1) {
      EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 3.0, torch::kFloat64)));
    }
    const torch::NoGradGuard off;
    EXPECT_FALSE(ops::all_reduce(group, x, Reduction::sum).requires_grad());
    EXPECT_FALSE(
        ops::all_reduce(group, torch::ones({2}, torch::kInt64), Reduction::sum).requires_grad());
  });
}

// promise: ops.h#all_reduce, ops.h#attach
TEST(Ops, WhatOneMemberDoesNotUseCanBeAttached) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto x = torch::ones({3}).requires_grad_();
    auto z = torch::full({2}, std::numeric_limits<float>::infinity()).requires_grad_();
    const auto y = ops::all_reduce(group, z, Reduction::sum);
    const auto own = (x * 2).sum();
    const auto loss = job.rank() == 0 ? ops::attach(own, {y}) : own + y.sum();
    EXPECT_EQ(std::isfinite(loss.item<float>()), job.rank() == 0) << "nothing is added";
    ops::backward(group, loss);
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 2.0F)));
    EXPECT_TRUE(torch::equal(z.grad(), torch::ones({2}))) << "that of rank 1 alone";
  });
}

/// The texts of both ranks.
std::vector<std::string> texts_of(const std::function<void(const Group&)>& body) {
  const auto outcome = outcome_on_workers(2, [&](const Job& job) { body(Group(job)); });
  return {outcome.ranks[0].text, outcome.ranks[1].text};
}

// promise: ops.h#all_reduce
TEST(Ops, AnotherOrderInBackwardIsAMismatchThatNamesTheCalls) {
  const auto texts = texts_of([](const Group& group) {
    auto x = torch::ones({2}).requires_grad_();
    const auto first = ops::all_reduce(group, x, Reduction::sum, {.label = "scores"});
    const auto second = ops::all_reduce(group, x, Reduction::sum);
    // The engine takes the younger one first, where both are there.
    ops::backward(group, group.rank() == 0 ? (first + second).sum() : first.sum());
    group.barrier();
  });
  for (const auto& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("\"gradient of call 2\""),
                            HasSubstr("\"gradient of call 1, \"scores\"\"")));
  }
}

// promise: ops.h#backward
TEST(Ops, AFailureInBackwardReachesTheOthersAtOnce) {
  struct Failing : torch::autograd::Function<Failing> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::tensor_list&) {
      throw std::runtime_error("out of ideas");
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = texts_of([](const Group& group) {
    auto x = torch::ones({2}).requires_grad_();
    auto y = ops::all_reduce(group, x, Reduction::sum);
    if (group.rank() == 1) y = Failing::apply(y);
    try {
      ops::backward(group, y.sum());
    } catch (const PeerFailed& e) {
      EXPECT_EQ(e.rank(), 1);
      throw;
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_THAT(texts[0], HasSubstr("rank 1 has failed, and with it group \"world\": out of ideas"));
  EXPECT_THAT(texts[1], HasSubstr("out of ideas"));
}

/// The copy is a view: torch refuses to change it, as the input that a function of its own returns.
// promise: ops.h#copy_to_group
TEST(Ops, ACopyThatIsChangedInPlaceIsTorchsErrorAndLeavesItsInputAlone) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto leaf = draw(1, {3}).requires_grad_();
    for (const auto& x : {leaf, leaf * 2, draw(2, {3})}) {
      const auto before = x.detach().clone();
      auto y = ops::copy_to_group(group, x);
      EXPECT_TRUE(y.requires_grad());
      EXPECT_THAT(text_of<c10::Error>([&] { y.mul_(3); }),
                  HasSubstr("is a view and is being modified inplace"));
      EXPECT_TRUE(torch::equal(x.detach(), before));
    }
    // What is made of it is the program's own, and rows that lie apart stay where they are.
    const auto whole = draw(3, {4, 3}).requires_grad_();
    auto y = ops::copy_to_group(group, whole.t()) * (job.rank() + 1);
    y.mul_(2);
    ops::backward(group, y.sum());
    EXPECT_TRUE(torch::equal(whole.grad(), torch::full({4, 3}, 6.0, torch::kFloat64)));
    torch::Tensor constant;
    {
      const c10::InferenceMode inference;
      constant = draw(4, {3});
    }
    ops::backward(group, ops::copy_to_group(group, constant).sum());
  });
}

// promise: ops.h#all_reduce
TEST(Ops, NumbersOfRowsThatCannotBeAreRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto x = torch::ones({2, 2});
    const Rows one = {1, 1};
    const Rows negative = {-1, 3};
    const Rows huge = {std::int64_t{1} << 61, 0};
    const Rows beyond = {std::numeric_limits<std::int64_t>::max(), 1};
    const auto refused = [](const std::function<void()>& call) {
      return text_of<InvalidArgument>(call);
    };
    const auto scattered = [&](const Rows& rows) {
      return refused([&] { ops::reduce_scatter(group, x, Reduction::sum, rows); });
    };
    EXPECT_THAT(scattered(negative), HasSubstr("reduce_scatter: rank 0 cannot have -1 rows"));
    EXPECT_THAT(scattered(beyond), HasSubstr("reduce_scatter: rank 1 cannot have 1 rows"));
    EXPECT_THAT(scattered(huge), HasSubstr("rows of 2 elements are more than memory can hold"));
    EXPECT_THAT(refused([&] { ops::scatter(group, x, negative, 0); }),
                HasSubstr("scatter: rank 0 cannot have -1 rows"));
    EXPECT_THAT(refused([&] { ops::scatter(group, torch::tensor(1.0), one, 0); }),
                HasSubstr("scatter: a scalar has no rows"));
    EXPECT_THAT(refused([&] { ops::all_to_all(group, x, negative, one); }),
                HasSubstr("all_to_all: rank 0 cannot have -1 rows"));
    EXPECT_THAT(refused([&] { ops::all_to_all(group, x, one, negative); }),
                HasSubstr("all_to_all: rank 0 cannot have -1 rows"));
    EXPECT_THAT(refused([&] { ops::all_to_all(group, x, one, huge); }),
                HasSubstr("more than memory can hold"));
    EXPECT_THAT(refused([&] { ops::exchange_rows(group, negative); }),
                HasSubstr("exchange_rows: rank 0 cannot have -1 rows"));
    EXPECT_EQ(ops::all_gather(group, x).size(0), 4) << "nothing was sent";
  });
}

// promise: ops.h#all_reduce
TEST(Ops, ASparseTensorIsRefusedByEach) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto x = torch::ones({3, 2}).to_sparse();
    const Rows rows = {3};
    const std::vector<std::function<void()>> calls = {
        [&] { ops::all_reduce(group, x, Reduction::sum); },
        [&] { ops::reduce(group, x, Reduction::sum, 0); },
        [&] { ops::reduce_scatter(group, x, Reduction::sum); },
        [&] { ops::all_gather(group, x); },
        [&] { ops::gather(group, x, 0); },
        [&] { ops::broadcast(group, x, 0); },
        [&] { ops::scatter(group, x, rows, 0); },
        [&] { ops::all_to_all(group, x, rows, rows); },
        [&] { ops::copy_to_group(group, x); },
        [&] { ops::reduce_from_group(group, x); },
        [&] { ops::send(group, x, 0); },
        [&] { ops::receive(group, x, 0); },
        [&] { tutti::all_gather(group, x); },
        [&] { tutti::all_gather_variable(group, x); },
        [&] { partial_sum(group, x).reduce(); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_THAT(text_of<Unsupported>(calls[i]), HasSubstr("sparse and other non-strided tensors"))
          << i;
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] { ops::receive(group, {}, 0); }),
                HasSubstr("the tensor is undefined"));
  });
}

/// As many elements in each row: what would be joined are other ones.
// promise: ops.h#all_reduce, ops.h#receive
TEST(Ops, OtherDimsOnAnotherMemberAreAMismatchThatNamesBoth) {
  using Call = std::function<void(const Group&, const torch::Tensor&)>;
  const Rows rows = {1, 1};
  const std::vector<Call> calls = {
      [](const Group& g, const torch::Tensor& x) { ops::all_gather(g, x); },
      [](const Group& g, const torch::Tensor& x) { ops::gather(g, x, 1); },
      [&](const Group& g, const torch::Tensor& x) { ops::scatter(g, x, rows, 0); },
      [&](const Group& g, const torch::Tensor& x) { ops::all_to_all(g, x, rows, rows); },
      [&](const Group& g, const torch::Tensor& x) { ops::reduce_scatter(g, x, Reduction::sum); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto texts = texts_of([&](const Group& group) {
      calls[i](group, group.rank() == 0 ? torch::ones({2, 2, 3}) : torch::ones({2, 3, 2}));
    });
    for (const auto& text : texts) {
      EXPECT_THAT(text, AllOf(HasSubstr("disagree in call"), HasSubstr("as [2, 3] with strides"),
                              HasSubstr("as [3, 2] with strides")))
          << i;
    }
  }
  const auto texts = texts_of([](const Group& group) {
    group.connect(Pairs{{0, 1}});
    if (group.rank() == 0) {
      ops::send(group, torch::ones({2, 3}), 1);
    } else {
      ops::receive(group, torch::ones({3, 2}), 0);
    }
  });
  for (const auto& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("as [2, 3] with strides"), HasSubstr("as [3, 2] with")));
  }
}

/// A member that has no rows has the other dims all the same.
// promise: ops.h#all_reduce, tensors.h#all_reduce
TEST(Ops, NoRowsOfTheSameDimsAreJoined) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto x = torch::full({2 * job.rank(), 3, 1, 2}, 5.0);
    EXPECT_TRUE(torch::equal(ops::all_gather(group, x), torch::full({2, 3, 1, 2}, 5.0)));
    EXPECT_TRUE(torch::equal(tutti::all_gather_variable(group, x), torch::full({2, 3, 1, 2}, 5.0)));
  });
}

// promise: ops.h#all_reduce, ops.h#reduce
TEST(Ops, WhatCannotBeDoneIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto x = torch::ones({3, 2}).requires_grad_();
    const auto meta = torch::ones({3}, torch::kMeta);
    EXPECT_THAT(text_of<Unsupported>([&] { ops::all_reduce(group, meta, Reduction::sum); }),
                HasSubstr("a tensor on meta"));
    EXPECT_THAT(text_of<Unsupported>([&] { ops::all_gather(group, meta); }),
                HasSubstr("a tensor on meta"));
    EXPECT_THAT(text_of<Unsupported>([&] { ops::reduce(group, x, Reduction::max, 0); }),
                HasSubstr("sum and mean; all_reduce() has the others"));
    EXPECT_THAT(text_of<Unsupported>([&] {
                  ops::all_reduce(group, torch::ones({2}, torch::kBool), Reduction::logical_and);
                }),
                HasSubstr("has no gradient"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { ops::all_gather(group, torch::tensor(1.0)); }),
                HasSubstr("a scalar has no rows"));
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  ops::scatter(group, x, Rows{1, 2}, 0);
                }),
                HasSubstr("2 numbers of rows for 1 members"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { ops::all_reduce(group, {}, Reduction::sum); }),
                HasSubstr("the tensor is undefined"));
    const auto y = ops::all_reduce(group, x, Reduction::sum).square().sum();
    EXPECT_THAT(text_of<Unsupported>([&] {
                  torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true,
                                        /*create_graph=*/true);
                }),
                HasSubstr("a second derivative of a collective"));
  });
}

}  // namespace
}  // namespace tutti::test::ops_cases
