// torch::save() of models whose rows lie on several workers.

#include <sstream>

#include "torch/training.h"
#include "tutti/parallel_cross_entropy.h"

namespace tutti::test::torch_save_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// promise: split_module.h#save
TEST(TorchSave, OfAModelWithASplitLayerIsRefusedAndNamesWhatDoesIt) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto expect_refused = [](torch::nn::Sequential model, const std::string& layer) {
      std::stringstream file;
      EXPECT_THAT(
          text_of<Unsupported>([&] { torch::save(model, file); }),
          AllOf(HasSubstr("torch::save() of a model with the split layer " + layer),
                HasSubstr("gather_whole()"), HasSubstr("a ParallelCrossEntropy save(file)")));
      // A file that an older program has written has the layer's name.
      torch::nn::Sequential plain(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
      torch::save(plain, file);
      EXPECT_THAT(text_of<Unsupported>([&] { torch::load(model, file); }),
                  AllOf(HasSubstr("torch::load() of a model with the split layer " + layer),
                        HasSubstr("scatter_whole()")));
    };
    const torch::nn::Linear first(6, 6);
    expect_refused(
        torch::nn::Sequential(first, ParallelLinear(group, {.features = 6, .classes = 4})),
        "ParallelLinear");
    expect_refused(torch::nn::Sequential(first, ParallelEmbedding(group, {.rows = 6, .dim = 4})),
                   "ParallelEmbedding");
    expect_refused(torch::nn::Sequential(first, ParallelCrossEntropy(group, 6, 4, Sgd{.lr = 0.1})),
                   "classifier");
  });
}

/// torch reads a file child by child: nobody is asked before.
// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(TorchSave, ARefusedLoadHasReadWhatStandsBeforeTheLayer) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    torch::nn::Sequential model(torch::nn::Linear(6, 6),
                                ParallelLinear(group, {.features = 6, .classes = 6}),
                                torch::nn::Linear(6, 6));
    torch::nn::Sequential plain(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6),
                                torch::nn::Linear(6, 6));
    std::stringstream file;
    torch::save(plain, file);
    const auto before = model->parameters();
    std::vector<torch::Tensor> values;
    for (const auto& parameter : before) values.push_back(parameter.detach().clone());
    EXPECT_NE(text_of<Unsupported>([&] { torch::load(model, file); }), "");
    EXPECT_TRUE(torch::equal(before.at(0), plain->parameters().at(0))) << "the trunk was read";
    for (std::size_t p = 2; p < before.size(); ++p) {
      EXPECT_TRUE(torch::equal(before[p], values[p])) << p;
    }
  });
}

TEST(TorchSave, OfAModelWithASyncBatchNormIsWhole) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    const auto make = [&] {
      return torch::nn::Sequential(torch::nn::Linear(6, 6),
                                   SyncBatchNorm(group, torch::nn::BatchNormOptions(6)));
    };
    auto model = make();
    model->forward(torch::randn({5, 6}) + 3);
    std::stringstream file;
    torch::save(model, file);
    auto other = make();
    torch::load(other, file);
    for (std::size_t b = 0; b < model->buffers().size(); ++b) {
      EXPECT_TRUE(torch::equal(other->buffers()[b], model->buffers()[b]));
    }
    EXPECT_EQ(parameters_sha256(*other), parameters_sha256(*model));
  });
}

}  // namespace
}  // namespace tutti::test::torch_save_cases
