// The split classifier as a whole: its file and its hash.

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "torch/classes/classifier_cases.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// promise: parallel_cross_entropy.h#load, parallel_cross_entropy.h#save
TEST(ParallelCrossEntropy, IsSavedWholeAndResumesOnAnotherNumberOfWorkers) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("tutti_classifier_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto file = (folder / "head.safetensors").string();
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const Options options{
        .reduction = LossReduction::sum, .sample_rate = 0.5, .pieces = 7, .dtype = type};
    const auto run = [&](int size, int from, int to) {
      return text_of_rank_0(size, [&](const Job& job) {
        const Group group(job);
        auto others = options;
        others.seed = 0;
        ParallelCrossEntropy head(group, kIn, 100, Adam{.lr = 0.1}, others);
        if (from > 0) head->load(file);
        EXPECT_EQ(head->updates(), from);
        for (int step = from; step < to; ++step) {
          const auto samples =
              Samples::shared(size, 100, static_cast<std::uint64_t>(10 * step), torch::kFloat32);
          head->forward(samples.of(samples.features, job.rank()),
                        samples.of(samples.labels, job.rank()))
              .backward();
          head->step();
        }
        if (from == 0 && to == 2) head->save(file);
        return head->sha256();
      });
    };
    const auto through = run(1, 0, 5);
    std::filesystem::remove(file);
    run(3, 0, 2);
    for (const int size : {1, 2, 5}) EXPECT_EQ(run(size, 2, 5), through) << size;
  }
  // What save() refuses, and what load() does.
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 101, Adam{}, {});
    const auto is_first = job.rank() == 0;
    const auto text = [&](const auto& call) {
      return is_first ? text_of<InvalidArgument>(call) : text_of<PeerFailed>(call);
    };
    EXPECT_THAT(text([&] { head->save(file); }), HasSubstr("is there already"));
    const auto before = head->sha256();
    EXPECT_THAT(text([&] { head->load(file); }),
                AllOf(HasSubstr("\"weight\" is BF16 [100, 5], and the classifier's F32 [101, 5]")));
    EXPECT_EQ(head->sha256(), before);
    EXPECT_THAT(is_first ? text_of<IoError>([&] { head->load(file + "x"); })
                         : text_of<PeerFailed>([&] { head->load(file + "x"); }),
                HasSubstr("head.safetensorsx"));
    std::filesystem::path torn = folder / "torn.safetensors";
    if (is_first) {
      std::filesystem::copy_file(file, torn);
      std::filesystem::resize_file(torn, std::filesystem::file_size(torn) - 1);
    }
    group.barrier();
    EXPECT_THAT(is_first ? text_of<Corrupt>([&] { head->load(torn.string()); })
                         : text_of<PeerFailed>([&] { head->load(torn.string()); }),
                HasSubstr("torn.safetensors"));
    EXPECT_EQ(head->sha256(), before);
  });
  std::filesystem::remove_all(folder);
}

// promise: parallel_cross_entropy.h#seed, parallel_cross_entropy.h#sha256
TEST(ParallelCrossEntropy, HashesAsALayerWithOneParameter) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    ParallelCrossEntropy head(group, kIn, 33, Sgd{}, {});
    torch::nn::Linear dense(torch::nn::LinearOptions(kIn, 33).bias(false));
    const auto weights = whole(head, torch::kFloat32);
    const torch::NoGradGuard no_grad;
    dense->weight.copy_(weights);
    EXPECT_EQ(head->sha256(), parameters_sha256(*dense));
    EXPECT_LE(weights.abs().max().item<double>(), 1 / std::sqrt(5.0));
    EXPECT_GE(weights.abs().max().item<double>(), 0.9 / std::sqrt(5.0));
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
