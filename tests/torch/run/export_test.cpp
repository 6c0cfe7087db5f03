// `tutti export --torch`: what torch::load and torch.jit.load make of a checkpoint.

#include <torch/script.h>

#include <filesystem>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::export_cases {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

torch::nn::Sequential body_of(const torch::nn::Linear& shared) {
  return torch::nn::Sequential(shared, torch::nn::BatchNorm1d(6), torch::nn::ReLU(), shared,
                               torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
}

/// What an archive has to carry: nesting, modules without tensors, tied weights in two ways, a
/// parameter that is not there, buffers, 16 bits.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : shared(6, 6),
        body(register_module("body", body_of(shared))),
        tied(register_parameter("tied", shared->weight)),
        half(register_parameter("half", torch::ones({3}, torch::kBFloat16))) {}
  torch::Tensor loss() {
    return body->forward(torch::randn({4, 6})).square().mean() + tied.square().sum() +
           half.square().sum();
  }
  torch::nn::Linear shared;
  torch::nn::Sequential body;
  torch::Tensor tied;
  torch::Tensor half;
};
TORCH_MODULE(Net);

/// Saves after each of two steps, the second time also as torch does it.
void train(const std::string& folder, double average = 0.5) {
  on_workers(1, [&](const Job& job) {
    Net net;
    Trainer trainer(job, *net, Adam{.lr = 0.1}, {.shards = 2, .ema_decay = average});
    for (int step = 0; step < 2; ++step) {
      trainer.step([&](Shard& shard) { return shard.loss(net->loss()); });
      trainer.save(folder);
    }
    torch::save(net, folder + "/by-torch");
    if (average == 0) return;
    trainer.with_ema([&] { torch::save(net, folder + "/averaged-by-torch"); });
  });
}

void expect_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto compare = [](const auto& left, const auto& right) {
    ASSERT_EQ(left.size(), right.size());
    for (const auto& item : left) {
      EXPECT_TRUE(torch::equal(item.value(), right[item.key()])) << item.key();
      EXPECT_EQ(item.value().scalar_type(), right[item.key()].scalar_type());
    }
  };
  compare(a.named_parameters(), b.named_parameters());
  compare(a.named_buffers(), b.named_buffers());
}

void expect_same_archive(const std::string& ours, const std::string& torchs) {
  Net from_ours;
  Net from_torchs;
  torch::load(from_ours, ours);
  torch::load(from_torchs, torchs);
  expect_equal(*from_ours, *from_torchs);
}

TEST(Export, TorchLoadReadsWhatWasSaved) {
  const TemporaryFolder folder;
  train(folder.file("run"));
  const auto file = folder.file("model.pt");
  const auto run = run_command({"export", "--torch", folder.file("run"), file});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.out, file + ": the model after step 2\n");
  expect_same_archive(file, folder.file("run") + "/by-torch");

  const auto averaged = run_command({"export", "--torch", "--averages", folder.file("run"), file});
  EXPECT_EQ(averaged.status, 0) << averaged.err;
  expect_same_archive(file, folder.file("run") + "/averaged-by-torch");
}

TEST(Export, JitLoadReadsItUnderTheModelsNames) {
  const TemporaryFolder folder;
  train(folder.file("run"));
  const auto file = folder.file("model.pt");
  ASSERT_EQ(run_command({"export", "--torch", folder.file("run") + "/step-00000001", file}).status,
            0);
  const auto module = torch::jit::load(file);
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.name);
  for (const auto& item : module.named_buffers()) names.push_back(item.name);
  Net net;
  for (const auto& item : net->named_parameters()) EXPECT_THAT(names, Contains(item.key()));
  for (const auto& item : net->named_buffers()) EXPECT_THAT(names, Contains(item.key()));
  EXPECT_EQ(names.size(), net->named_parameters().size() + net->named_buffers().size());
}

TEST(Export, WhatCannotBeExportedIsSaid) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::vector<std::string>& options) {
    std::vector<std::string> all{"export", "--torch"};
    all.insert(all.end(), options.begin(), options.end());
    const auto run = run_command(all);
    EXPECT_EQ(run.status, 1);
    EXPECT_FALSE(std::filesystem::exists(folder.file("model.pt")));
    return run.err;
  };
  EXPECT_THAT(refusal({folder.file("nowhere"), folder.file("model.pt")}),
              HasSubstr("there is no checkpoint in "));
  train(folder.file("run"), 0);
  EXPECT_THAT(refusal({"--averages", folder.file("run"), folder.file("model.pt")}),
              HasSubstr("has no moving averages"));
  EXPECT_THAT(refusal({folder.file("run"), folder.file("no/such/folder/model.pt")}),
              HasSubstr("no/such/folder"));
  const auto file = folder.file("run") + "/step-00000002/parameters.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_THAT(refusal({folder.file("run"), folder.file("model.pt")}),
              HasSubstr("parameters.safetensors"));
  EXPECT_EQ(run_command({"export", folder.file("run"), folder.file("model.pt")}).status, 2);
}

/// A trunk and a classifier that is split over the workers, or the dense layer in its place.
template <class Head>
struct HeadedImpl : torch::nn::Module {
  explicit HeadedImpl(Head own)
      : trunk(register_module("trunk", torch::nn::Linear(4, 5))),
        head(register_module("head", std::move(own))) {}
  torch::nn::Linear trunk;
  Head head;
};

/// A parameter below `depth` modules.
struct NestImpl : torch::nn::Module {
  explicit NestImpl(int depth) {
    if (depth == 0) {
      weight = register_parameter("weight", torch::ones({3}));
    } else {
      inner = register_module("m", std::make_shared<NestImpl>(depth - 1));
    }
  }
  torch::Tensor value() { return inner == nullptr ? weight : inner->value(); }
  std::shared_ptr<NestImpl> inner;
  torch::Tensor weight;
};

// It took minutes.
// findings-3: C5
TEST(Export, OfAModelThatIsTooDeepIsRefusedAndOfADeepOneIsRead) {
  for (const int depth : {128, 129, 2000}) {
    const TemporaryFolder folder;
    NestImpl net(depth);
    on_workers(1, [&](const Job& job) {
      Trainer trainer(job, net, Sgd{.lr = 0.1});
      trainer.step([&](Shard& shard) { return shard.loss(net.value().sum()); });
      trainer.save(folder.file("run"));
    });
    const auto file = folder.file("model.pt");
    const auto run = run_command({"export", "--torch", folder.file("run"), file});
    EXPECT_EQ(run.status, depth > 128 ? 1 : 0) << run.err;
    if (depth > 128) {
      EXPECT_THAT(run.err, HasSubstr("a module lies 129 modules deep"));
      continue;
    }
    auto read = std::make_shared<NestImpl>(depth);
    torch::load(read, file);
    EXPECT_TRUE(torch::allclose(read->value(), torch::full({3}, 0.9F)));  // 1 − lr · 1
  }
}

TEST(Export, HasALayerThatIsSplitOverTheWorkersAsAWhole) {
  const TemporaryFolder folder;
  const auto sha = text_of_rank_0(2, [&](const Job& job) {
    const Group group(job);
    HeadedImpl<ParallelCrossEntropy> net(
        ParallelCrossEntropy(group, 5, 33, Sgd{.lr = 0.1, .momentum = 0.9}, {}));
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 2});
    trainer.step([&](Shard& shard) {
      return shard.loss(net.head->forward(net.trunk->forward(torch::ones({3, 4})),
                                          torch::full({3}, shard.index(), torch::kInt64)));
    });
    trainer.save(folder.file("run"));
    return net.head->sha256();
  });
  const auto file = folder.file("model.pt");
  const auto run = run_command({"export", "--torch", folder.file("run"), file});
  EXPECT_EQ(run.status, 0) << run.err;
  const auto dense = std::make_shared<HeadedImpl<torch::nn::Linear>>(
      torch::nn::Linear(torch::nn::LinearOptions(5, 33).bias(false)));
  torch::load(dense, file);
  EXPECT_EQ(parameters_sha256(*dense->head), sha);
}

}  // namespace
}  // namespace tutti::test::export_cases
