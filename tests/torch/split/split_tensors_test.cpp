// Split tensors as a whole, over other numbers of members, and the norm of all gradients.

#include "tutti/split_tensors.h"

#include <filesystem>

#include "torch/split/whole.h"

namespace tutti::test::split_tensors_cases {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

ParallelLinear layer_of(const Group& group, std::uint64_t seed, std::int64_t classes = 10) {
  return ParallelLinear(
      group, ParallelLinearOptions{
                 .features = 3, .classes = classes, .seed = seed, .dtype = torch::kFloat64});
}

// promise: split_module.h#SplitTensor, split_tensors.h#gather_whole, split_tensors.h#scatter_whole
TEST(SplitTensors, StateOfThreeMembersIsTakenUpByTwoAndByFive) {
  const auto folder = fs::temp_directory_path() / fmt::format("tutti_split_{}", ::getpid());
  fs::create_directories(folder);
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    auto layer = layer_of(group, 1);
    for (const auto& tensor : layer->split_tensors()) {
      const auto whole = gather_whole(group, tensor, 0);
      EXPECT_EQ(whole.defined(), job.rank() == 0) << "nobody else has the whole";
      if (whole.defined()) torch::save(whole, path(tensor.name));
    }
  });
  for (const int size : {1, 2, 5}) {
    on_workers(size, [&](const Job& job) {
      const Group group(job);
      const auto wanted = layer_of(group, 1);
      auto scattered = layer_of(group, 2);
      auto taken = layer_of(group, 3);
      EXPECT_FALSE(torch::equal(layer_of(group.split(job.rank(), "alone"), 2)->weight,
                                layer_of(group.split(job.rank(), "alone"), 1)->weight));
      const int root = size - 1;
      for (const auto& tensor : scattered->split_tensors()) {
        torch::Tensor whole;
        if (job.rank() == root) torch::load(whole, path(tensor.name));
        scatter_whole(group, tensor, whole, root);
      }
      for (const auto& tensor : taken->split_tensors()) {
        torch::Tensor whole;
        torch::load(whole, path(tensor.name));
        take_rows(tensor, whole);
      }
      for (const auto& layer : {scattered, taken}) {
        EXPECT_TRUE(torch::equal(layer->weight, wanted->weight));
        EXPECT_TRUE(torch::equal(layer->bias, wanted->bias));
      }
    });
  }
  fs::remove_all(folder);
}

// promise: split_tensors.h#clip_grad_norm, split_tensors.h#scatter_whole, split_tensors.h#take_rows
TEST(SplitTensors, AWholeThatDoesNotFitIsSaidOnAll) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    auto layer = layer_of(group, 1);
    const auto tensor = layer->split_tensors().front();
    const auto before = layer->weight.detach().clone();
    for (const auto& wrong : {torch::ones({9, 3}, torch::kFloat64), torch::ones({10, 3})}) {
      const auto scatter = [&] {
        scatter_whole(group, tensor, job.rank() == 1 ? wrong : torch::Tensor(), 1);
      };
      if (job.rank() == 1) {
        EXPECT_THAT(text_of<InvalidArgument>(scatter),
                    HasSubstr("\"weight\" is Double [10, 3] as a whole, not"));
      } else {
        EXPECT_THAT(text_of<PeerFailed>(scatter), HasSubstr("rank 1 has no whole of \"weight\""));
      }
      EXPECT_THAT(text_of<InvalidArgument>([&] { take_rows(tensor, wrong); }),
                  HasSubstr("\"weight\" is Double [10, 3] as a whole, not"));
    }
    EXPECT_THAT(text_of<InvalidArgument>([&] { take_rows(tensor, {}); }),
                HasSubstr("not undefined"));
    EXPECT_TRUE(torch::equal(layer->weight, before));
    scatter_whole(group, tensor,
                  job.rank() == 1 ? torch::ones({10, 3}, torch::kFloat64) : torch::Tensor(), 1);
    EXPECT_TRUE(torch::equal(layer->weight, torch::ones_like(before)));
  });
}

struct PartlySplitImpl : torch::nn::Module {
  explicit PartlySplitImpl(const Group& group)
      : table(register_module(
            "table",
            ParallelEmbedding(group,
                              ParallelEmbeddingOptions{
                                  .rows = 7, .dim = 4, .seed = 3, .dtype = torch::kFloat64}))),
        middle(register_module("middle", torch::nn::Linear(4, 3))),
        head(register_module("head", layer_of(group, 1))) {
    middle->to(torch::kFloat64);
    const torch::NoGradGuard off;
    middle->weight.copy_(drawn(4, {3, 4}));
    middle->bias.copy_(drawn(5, {3}));
  }
  torch::Tensor forward(const torch::Tensor& indices) {
    return head->logits(middle->forward(table->forward(indices)).tanh());
  }
  ParallelEmbedding table;
  torch::nn::Linear middle;
  ParallelLinear head;
};
TORCH_MODULE(PartlySplit);

// promise: split_tensors.h#clip_grad_norm
TEST(SplitTensors, TheNormOfGradientsIsThatOfTheWholeModel) {
  for (const int size : {1, 2, 3, 5}) {
    on_workers(size, [](const Job& job) {
      const Group group(job);
      PartlySplit mine(group);
      PartlySplit whole(group.split(job.rank(), "alone"));
      const auto indices = drawn_labels(5, 7, {6});
      // All members have the same samples here, so that replicated gradients are alike.
      for (auto* model : {&mine, &whole}) {
        const double members = model == &mine ? job.size() : 1;
        ops::backward(group, (*model)->forward(indices).square().sum() / members);
        // What the members give to one middle layer.
        (*model)->middle->weight.mutable_grad() *= members;
        (*model)->middle->bias.mutable_grad() *= members;
      }
      auto dense = whole->table->weight.grad().to_dense();
      whole->table->weight.mutable_grad() = dense;
      const double wanted = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5);
      EXPECT_GT(wanted, 0.5);
      const double norm = clip_grad_norm(group, *mine, 0.5);
      EXPECT_NEAR(norm, wanted, 1e-12 * wanted);
      double first = norm;
      group.broadcast({&first, 1, DType::float64}, 0);
      EXPECT_EQ(norm, first) << "not the bits of rank 0";
      expect_near(mine->middle->weight.grad(), whole->middle->weight.grad(), "replicated");
      expect_near(mine->head->weight.grad(), part_of(whole->head->weight.grad(), group), "split");
      expect_near(mine->table->weight.grad().to_dense(), part_of(dense, group), "sparse");
      const auto kept = mine->head->weight.grad().clone();
      EXPECT_NEAR(clip_grad_norm(group, *mine, 10), 0.5, 1e-5);
      EXPECT_TRUE(torch::equal(mine->head->weight.grad(), kept)) << "below the bound";
    });
  }
}

TEST(SplitTensors, ANormThatIsNotANumberMakesAllGradientsSoAsTorchDoes) {
  for (const int size : {1, 2, 3}) {
    on_workers(size, [](const Job& job) {
      const Group group(job);
      torch::nn::Linear mine(3, 2);
      torch::nn::Linear whole(3, 2);
      for (auto* model : {&mine, &whole}) {
        (*model)->weight.mutable_grad() = torch::ones({2, 3});
        (*model)->bias.mutable_grad() = torch::full({2}, std::nan(""));
      }
      torch::nn::utils::clip_grad_norm_(whole->parameters(), 1);
      EXPECT_TRUE(std::isnan(clip_grad_norm(group, *mine, 1)));
      EXPECT_TRUE(torch::equal(mine->weight.grad().isnan(), whole->weight.grad().isnan()));
    });
  }
}

// promise: split_tensors.h#clip_grad_norm
TEST(SplitTensors, ANormThatCannotBeIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    PartlySplit model(group.split(job.rank(), "alone"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { clip_grad_norm(group, *model, 1); }),
                HasSubstr("layer \"table\" is split over another one"));
    for (const double bound : {0.0, -1.0, std::nan("")}) {
      EXPECT_THAT(text_of<InvalidArgument>([&] { clip_grad_norm(group, *model, bound); }),
                  HasSubstr("clip_grad_norm: max_norm"));
    }
  });
}

TEST(SplitTensors, PartsThatAreNotTheWholeAreRefusedOnAll) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, 3, 33, Sgd{}, {});
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { gather_whole(group, head->split_tensors()[0], 0); }),
        HasSubstr("of a ParallelCrossEntropy, which has a tensor for each piece, save() has "
                  "the whole"));
    EXPECT_EQ(head->sha256().size(), 64U);  // the group is as it was
  });
}

}  // namespace
}  // namespace tutti::test::split_tensors_cases
