// Workers that do not call a model's layers alike: which layers they were in is said.

#include "torch/split/partly_split_model.h"

namespace tutti::test::uneven_layers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Two norms of the same size: but for their names, calls of one look like those of the other.
struct Norms : torch::nn::Module {
  explicit Norms(const Group& group)
      : bn1(register_module("bn1", SyncBatchNorm(group, torch::nn::BatchNormOptions(4)))),
        bn2(register_module("bn2", SyncBatchNorm(group, torch::nn::BatchNormOptions(4)))) {}
  SyncBatchNorm bn1, bn2;
};

/// What a worker that calls `one` is told where the other calls `other`.
std::string mismatch_of(const Job& job, const std::function<void()>& one,
                        const std::function<void()>& other) {
  return text_of<Mismatch>([&] { job.rank() == 0 ? one() : other(); });
}

// promise: split_module.h#label_of, split_module.h#set_layer_name
TEST(UnevenLayers, AMismatchNamesThemAsTheModelDoes) {
  on_workers(2, [](const Job& job) {
    const auto x = torch::randn({3, 4});
    {
      const Group group(job, "norms");
      Norms net(group);
      const DataParallel parallel(job, net);
      EXPECT_THAT(
          mismatch_of(
              job, [&] { net.bn1->forward(x); }, [&] { net.bn2->forward(x); }),
          AllOf(HasSubstr("rank 0: all-gather"), HasSubstr("\"SyncBatchNorm bn1: statistics\""),
                HasSubstr("\"SyncBatchNorm bn2: statistics\"")));
    }
    const auto words = torch::zeros({2}, torch::kInt64);
    const auto features = torch::zeros({2, 5}, torch::kFloat64);
    {
      const Group group(job, "head and table");
      PartlySplitModel net(group);
      const DataParallel parallel(job, *net);
      EXPECT_THAT(
          mismatch_of(
              job, [&] { net->head->forward(features); }, [&] { net->table->forward(words); }),
          AllOf(HasSubstr("\"ParallelLinear head: features\""),
                HasSubstr("\"ParallelEmbedding table: numbers of look-ups\"")));
    }
    {
      const Group group(job, "backward");
      Norms net(group);
      const DataParallel parallel(job, net);
      const auto y = net.bn1->forward(x.clone().requires_grad_());
      EXPECT_THAT(mismatch_of(
                      job, [&] { y.sum().backward(); }, [&] { net.bn2->forward(x); }),
                  AllOf(HasSubstr("\"SyncBatchNorm bn1: gradient of statistics\""),
                        HasSubstr("\"SyncBatchNorm bn2: statistics\"")));
    }
    {
      const Group group(job, "without names");
      Norms net(group);
      EXPECT_THAT(mismatch_of(
                      job, [&] { net.bn1->forward(x); }, [&] { group.barrier(); }),
                  HasSubstr("\"SyncBatchNorm: statistics\""));
    }
  });
}

}  // namespace
}  // namespace tutti::test::uneven_layers
