// Collectives on tensors: what they take, and that shapes and strides are compared.

#include "torch/training.h"

namespace tutti::test::tensors_cases {
namespace {

using ::testing::HasSubstr;

// promise: tensors.h#all_gather, tensors.h#all_gather_variable, tensors.h#reduce_scatter
TEST(Tensors, CollectivesInEveryForm) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    const auto mine =
        torch::arange(24).to(torch::kFloat32).reshape({1, 2, 3, 4}) * (job.rank() + 1);
    auto sum = mine.clone();
    const auto version = sum._version();
    all_reduce(group, sum, Reduction::sum);
    EXPECT_GT(sum._version(), version);
    const auto expected = torch::arange(24).to(torch::kFloat32).reshape({1, 2, 3, 4}) * 6;
    EXPECT_TRUE(torch::equal(sum, expected));
    auto last = mine.contiguous(torch::MemoryFormat::ChannelsLast);
    all_reduce(group, last, Reduction::sum);
    EXPECT_TRUE(torch::equal(last, expected));
    auto at_root = torch::zeros_like(mine);
    reduce(group, mine, at_root, Reduction::max, 2);
    EXPECT_TRUE(torch::equal(at_root, job.rank() == 2 ? expected / 2 : torch::zeros_like(mine)));
    auto part = torch::empty({2});
    reduce_scatter(group, torch::arange(6).to(torch::kFloat32), part, Reduction::sum);
    EXPECT_TRUE(
        torch::equal(part, here(torch::tensor({6.0F * job.rank(), 6.0F * job.rank() + 3}))));
    EXPECT_TRUE(torch::equal(all_gather(group, torch::full({1, 2}, job.rank())),
                             here(torch::tensor({{0, 0}, {1, 1}, {2, 2}}))));
    EXPECT_TRUE(torch::equal(all_gather_variable(group, torch::full({job.rank()}, job.rank())),
                             here(torch::tensor({1, 2, 2}))));
    auto word = torch::full({5}, job.rank(), torch::kInt64);
    broadcast(group, word, 1);
    EXPECT_TRUE(torch::equal(word, torch::ones({5}, torch::kInt64)));
    auto shared = shared_zeros(group, {7}, torch::kBFloat16);
    EXPECT_TRUE(torch::equal(here(shared), torch::zeros({7}, torch::kBFloat16)));
    shared.fill_(job.rank());
    auto work = start_all_reduce(group, shared, Reduction::mean);
    work.wait();
    EXPECT_TRUE(torch::equal(here(shared), torch::ones({7}, torch::kBFloat16)));
  });
}

// Equal element counts: what would be added are other elements.
// promise: group.h#layout, tensors.h#all_reduce
TEST(Tensors, ShapesAndStridesAreCompared) {
  const auto texts = [](const std::function<void(const Group&)>& call) {
    const auto outcome = outcome_on_workers(2, [&](const Job& job) { call(Group(job)); });
    EXPECT_EQ(outcome.ranks[0].text, outcome.ranks[1].text);
    return outcome.ranks[0].text;
  };
  EXPECT_THAT(texts([](const Group& group) {
                auto x = group.rank() == 0 ? torch::zeros({2, 3}) : torch::zeros({3, 2});
                all_reduce(group, x, Reduction::sum, {.label = std::string(80, 'w')});
              }),
              AllOf(HasSubstr("float32[6] as [2, 3] with strides [3, 1]"),
                    HasSubstr("float32[6] as [3, 2] with strides [2, 1]")));
  EXPECT_THAT(texts([](const Group& group) {
                auto x = torch::zeros({2, 2});
                if (group.rank() == 1) x = x.t();
                broadcast(group, x, 0);
              }),
              HasSubstr("strides [1, 2]"));
  const auto rows = [](const Group& group) {
    return group.rank() == 0 ? torch::zeros({2, 2, 3}) : torch::zeros({2, 3, 2});
  };
  EXPECT_THAT(texts([&](const Group& group) { all_gather(group, rows(group)); }),
              AllOf(HasSubstr("as [2, 2, 3]"), HasSubstr("as [2, 3, 2]")));
  EXPECT_THAT(texts([&](const Group& group) { all_gather_variable(group, rows(group)); }),
              AllOf(HasSubstr("as [2, 3]"), HasSubstr("as [3, 2]")));
  EXPECT_THAT(texts([&](const Group& group) {
                auto out = torch::zeros({6});
                reduce_scatter(group, rows(group), out, Reduction::sum);
              }),
              AllOf(HasSubstr("as [2, 2, 3]"), HasSubstr("as [2, 3, 2]")));
}

/// torch's strides of a dim of one element are what they were before a reshape or a slice.
TEST(Tensors, StridesThatNobodyStepsAlongAreNotCompared) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const bool first = job.rank() == 0;
    auto scalar = first ? torch::ones({1}) : torch::ones({1}).expand({1}).reshape({1});
    if (!first) scalar = torch::as_strided(torch::ones({1}), {1}, {0});
    all_reduce(group, scalar, Reduction::sum);
    EXPECT_EQ(scalar.item<double>(), 2);
    auto row = first ? torch::ones({1, 4}) : torch::ones({4, 1}).t();
    auto sum = torch::empty({1, 4});
    reduce(group, row, sum, Reduction::sum, 0);
    EXPECT_TRUE(!first || sum.equal(torch::full({1, 4}, 2.0)));
    auto empty = first ? torch::ones({0, 3}) : torch::ones({3, 0}).t();
    all_reduce(group, empty, Reduction::sum);
    auto loss = torch::ones({}).requires_grad_();
    const auto total = ops::reduce(group, loss.reshape({1}), Reduction::sum, 0);
    ops::backward(group,
                  first ? total.sum() : ops::attach(torch::zeros({}).requires_grad_(), {total}));
    EXPECT_EQ(loss.grad().item<double>(), 1);
  });
}

// promise: tensors.h#all_reduce, tensors.h#dtype_of, tensors.h#view_of
TEST(Tensors, WhatCannotBeMovedIsRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    torch::Tensor undefined;
    EXPECT_THAT(text_of([&] { all_reduce(group, undefined, Reduction::sum); }),
                HasSubstr("undefined"));
    auto holes = torch::zeros({4, 4}).slice(1, 0, 2);
    EXPECT_THAT(text_of([&] { all_reduce(group, holes, Reduction::sum); }), HasSubstr("holes"));
    auto complex = torch::zeros({3}, torch::kComplexHalf);
    EXPECT_THAT(text_of([&] { all_reduce(group, complex, Reduction::sum); }),
                HasSubstr("element type"));
    auto elsewhere = torch::zeros({3}, torch::kMeta);
    EXPECT_THAT(text_of<Unsupported>([&] { all_reduce(group, elsewhere, Reduction::sum); }),
                HasSubstr("CPU"));
    EXPECT_THAT(
        text_of<Unsupported>([&] { all_gather_variable(group, torch::ones({2}).to_sparse()); }),
        HasSubstr("sparse"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { all_gather(group, undefined); }),
                HasSubstr("undefined"));
    EXPECT_NE(text_of<Unsupported>([&] { all_reduce(group, holes, Reduction::sum); }), "");
    EXPECT_NE(text_of<Unsupported>([&] { all_reduce(group, complex, Reduction::sum); }), "");
    const auto in = torch::zeros({2, 3});
    auto out = torch::zeros({3, 2}).t();
    EXPECT_THAT(text_of([&] { reduce(group, in, out, Reduction::sum, 0); }),
                HasSubstr("other sizes or strides"));
  });
}

}  // namespace
}  // namespace tutti::test::tensors_cases
