// Tensors whose memory is not what their elements are: torch's negative and conjugate bits.

#include <ATen/ops/_neg_view.h>

#include <filesystem>

#include "support/running_command.h"
#include "torch/training.h"
#include "tutti/ops.h"

namespace tutti::test::negative_bit_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// `plain`, but for the bit: its memory has −plain.
torch::Tensor with_bit(const torch::Tensor& plain) {
  auto view = at::_neg_view(plain.neg());
  EXPECT_TRUE(view.is_neg());
  return view;
}

torch::Tensor values(int rank) {
  return torch::arange(6).to(torch::kFloat32).reshape({3, 2}) + 10 * (rank + 1);
}

/// Each of these gives the same for a tensor with the bit as for one without, on all workers.
std::vector<std::pair<std::string, std::function<torch::Tensor(const Group&, torch::Tensor)>>>
readers() {
  const auto rows = [](const Group& group, std::int64_t first) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
    all[0] = first;
    all.back() += 3 - first;
    return all;
  };
  return {
      {"ops::all_reduce(max)",
       [](const Group& group, torch::Tensor x) {
         return ops::all_reduce(group, x, Reduction::max);
       }},
      {"ops::all_reduce(product)",
       [](const Group& group, torch::Tensor x) {
         return ops::all_reduce(group, x, Reduction::product);
       }},
      {"ops::reduce", [](const Group& group,
                         torch::Tensor x) { return ops::reduce(group, x, Reduction::sum, 0); }},
      {"ops::reduce_scatter",
       [rows](const Group& group, torch::Tensor x) {
         return ops::reduce_scatter(group, x, Reduction::sum, rows(group, 1));
       }},
      {"ops::all_gather",
       [](const Group& group, torch::Tensor x) { return ops::all_gather(group, x); }},
      {"ops::gather", [](const Group& group, torch::Tensor x) { return ops::gather(group, x, 0); }},
      {"ops::broadcast",
       [](const Group& group, torch::Tensor x) {
         return ops::broadcast(group, x, group.size() - 1);
       }},
      {"ops::scatter",
       [rows](const Group& group, torch::Tensor x) {
         return ops::scatter(group, x, rows(group, 2), 0);
       }},
      {"ops::all_to_all",
       [rows](const Group& group, torch::Tensor x) {
         const auto given = rows(group, 1);
         return ops::all_to_all(group, x, given, ops::exchange_rows(group, given));
       }},
      {"ops::reduce_from_group",
       [](const Group& group, torch::Tensor x) { return ops::reduce_from_group(group, x); }},
      {"ops::copy_to_group",
       [](const Group& group, torch::Tensor x) { return ops::copy_to_group(group, x) * 1; }},
      {"ops::send",
       [](const Group& group, torch::Tensor x) {
         auto taken = torch::zeros({3, 2});
         if (group.rank() > 0) taken = ops::receive(group, taken, group.rank() - 1);
         if (group.rank() + 1 < group.size()) {
           return taken + ops::send(group, x, group.rank() + 1).sum();
         }
         return taken;
       }},
      {"all_gather",
       [](const Group& group, torch::Tensor x) { return tutti::all_gather(group, x); }},
      {"all_gather_variable",
       [](const Group& group, torch::Tensor x) { return tutti::all_gather_variable(group, x); }},
      {"reduce",
       [](const Group& group, torch::Tensor x) {
         auto out = torch::zeros({3, 2});
         tutti::reduce(group, x, out, Reduction::max, 0);
         return out;
       }},
      {"reduce_scatter",
       [](const Group& group, torch::Tensor x) {
         auto out = torch::zeros({3, 2});
         tutti::reduce_scatter(group, x.repeat({group.size(), 1}), out, Reduction::sum);
         return out;
       }},
      {"partial concat", [](const Group& group,
                            torch::Tensor x) { return Partial<Whole::concat>(group, x).reduce(); }},
      {"partial mean",
       [](const Group& group, torch::Tensor x) {
         return partial_mean(group, x, group.rank() + 1).reduce();
       }},
  };
}

// findings-3: B7
TEST(NegativeBit, WhatIsReadIsTheElements) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      std::vector<std::pair<int, int>> chain;
      for (int r = 0; r + 1 < job.size(); ++r) chain.emplace_back(r, r + 1);
      group.connect(chain);
      for (const auto& [name, read] : readers()) {
        const auto right = read(group, values(job.rank()));
        EXPECT_TRUE(torch::equal(read(group, with_bit(values(job.rank()))), right)) << name;
        auto imaginary = torch::complex(torch::zeros({3, 2}), -values(job.rank()));
        EXPECT_TRUE(torch::equal(read(group, torch::imag(imaginary.conj())), right)) << name;
      }
    });
  }
}

// findings-3: B7
TEST(NegativeBit, GradientsThatHaveItAreThoseOfTheElements) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      std::vector<std::pair<int, int>> chain;
      for (int r = 0; r + 1 < job.size(); ++r) chain.emplace_back(r, r + 1);
      group.connect(chain);
      for (const auto& [name, read] : readers()) {
        if (name.find("ops::") != 0) continue;
        std::vector<torch::Tensor> gradients;
        for (const bool has_bit : {false, true}) {
          auto x = values(job.rank()).requires_grad_();
          const auto result = read(group, x);
          if (!result.requires_grad()) continue;  // nobody sends
          const auto factors =
              torch::arange(1, 1 + result.numel(), torch::kFloat32).reshape(result.sizes());
          result.backward(has_bit ? with_bit(factors) : factors);
          gradients.push_back(x.grad().defined() ? x.grad() : torch::zeros({3, 2}));
        }
        if (gradients.empty()) continue;
        EXPECT_TRUE(torch::equal(gradients[0], gradients[1])) << name;
      }
    });
  }
}

// findings-3: B7
TEST(NegativeBit, WhatIsWrittenToIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto refused = [&](const char* what, const std::function<void(torch::Tensor&)>& call) {
      auto x = with_bit(values(job.rank()));
      EXPECT_THAT(text_of<Unsupported>([&] { call(x); }),
                  AllOf(HasSubstr("negative"), HasSubstr("resolve_neg()")))
          << what;
    };
    refused("all_reduce", [&](auto& x) { all_reduce(group, x, Reduction::max); });
    refused("broadcast", [&](auto& x) { broadcast(group, x, 0); });
    refused("start_all_reduce",
            [&](auto& x) { start_all_reduce(group, x, Reduction::max).wait(); });
    refused("view_of", [&](auto& x) { view_of(x); });
    auto sum = torch::ones({3});
    all_reduce(group, sum, Reduction::sum);  // nobody waits
    EXPECT_TRUE(torch::equal(sum, torch::full({3}, 2.0)));
  });
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const torch::Tensor& buffer) { register_buffer("table", buffer); }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(6, 3))};
};
TORCH_MODULE(Net);

// findings-3: B7
TEST(NegativeBit, BuffersAndParametersThatHaveItAreRefused) {
  on_workers(2, [](const Job& job) {
    Net net(with_bit(torch::ones({3})));
    const auto said = AllOf(HasSubstr("buffer \"table\""), HasSubstr("negative"));
    EXPECT_THAT(text_of<Unsupported>([&] { DataParallel parallel(job, *net); }), said);
    EXPECT_THAT(text_of<Unsupported>([&] { Trainer(job, *net, Sgd{.lr = 0.1}, {.shards = 2}); }),
                said);
    Net conjugate(torch::ones({3}, torch::kComplexFloat).conj());
    EXPECT_THAT(text_of<Unsupported>([&] { DataParallel parallel(job, *conjugate); }), said);
    const Group group(job);
    const auto parameter = with_bit(torch::ones({3})).requires_grad_();
    EXPECT_THAT(text_of<Unsupported>([&] {
                  DataParallel odd(group, {{"odd", parameter}});
                }),
                AllOf(HasSubstr("parameter \"odd\""), HasSubstr("negative")));
  });
}

// findings-3: B7
TEST(NegativeBit, GradientsOfADataParallelMayHaveIt) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      auto model = mlp();
      DataParallel parallel(job, *model);
      torch::Tensor plain;
      for (const bool has_bit : {false, true}) {
        model->zero_grad();
        const auto bias = model[2]->as<torch::nn::Linear>()->bias;
        bias.mutable_grad() = torch::full({3}, 1.0 + job.rank());
        if (has_bit) bias.mutable_grad() = with_bit(bias.grad().clone());
        parallel.synchronize();
        if (!has_bit) plain = bias.grad().clone();
        EXPECT_TRUE(torch::equal(bias.grad(), plain));
      }
    });
  }
}

// findings-3: B7
TEST(NegativeBit, LabelsAndIndicesMayHaveIt) {
  const auto labels = torch::tensor({0, 3, 4, 1});
  EXPECT_TRUE(torch::equal(shard_index(with_bit(labels), 5, 2, 1), shard_index(labels, 5, 2, 1)));
  EXPECT_TRUE(torch::equal(tutti::one_hot(with_bit(labels), 5), tutti::one_hot(labels, 5)));
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    ParallelEmbedding words(group, {.rows = 5, .dim = 3, .seed = 1});
    EXPECT_TRUE(torch::equal(words->forward(with_bit(labels)), words->forward(labels)));
  });
}

// findings-3: B15
TEST(NegativeBit, WhatIsKeptHasItsElements) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    auto odd = with_bit(torch::ones({3}));
    EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.keep("odd", odd); }),
                AllOf(HasSubstr("\"odd\""), HasSubstr("negative"), HasSubstr("clone()")));
    auto conjugate = torch::ones({3}, torch::kComplexFloat).conj();
    EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.keep("odd", conjugate); }),
                HasSubstr("conjugate"));
    odd = torch::ones({3});
    trainer.keep("odd", odd);
    odd = with_bit(odd);
    EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.save(folder.file("run")); }),
                AllOf(HasSubstr("\"odd\""), HasSubstr("negative")));
    odd = odd.clone();
    EXPECT_FALSE(odd.is_neg());
    trainer.save(folder.file("run"));
    odd.zero_();
    trainer.load(folder.file("run"));
    EXPECT_TRUE(torch::equal(odd, torch::ones({3})));
  });
}

}  // namespace
}  // namespace tutti::test::negative_bit_cases
