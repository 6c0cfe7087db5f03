// What takes part in a step of a Trainer and of a DataParallel, in the order in which each phase
// calls it: parts read what those before them have decided.

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

#include "torch/data_parallel/parallel_objects.h"
#include "torch/trainer/trainer_objects.h"
#include "torch/training.h"
#include "tutti/parallel_cross_entropy.h"

namespace tutti::test::step_lists_cases {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_of(const StepParts& parts) {
  std::vector<std::string> names;
  for (const auto* const part : parts.list()) {
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(typeid(*part).name(), nullptr, nullptr, nullptr), &std::free);
    names.push_back(std::string(name.get()).substr(std::string("tutti::").size()));
  }
  return names;
}

TEST(StepLists, OfATrainer) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    torch::nn::Sequential model(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
    TrainerWorld world(group, *model, Sgd{.lr = 0.1},
                       {.shards = 2,
                        .logical_workers = 2,
                        .per_replica = [](const std::string& name) { return name == "0.bias"; }});
    const TrainerObjects objects(world);
    EXPECT_THAT(names_of(objects.step_parts),
                ElementsAre("StepNotes", "ValueCheck", "Audit", "UpdateStepPart", "DropsStepPart",
                            "ReplicaParameters", "ShardBuffers", "SharedParameters",
                            "StatesStepPart", "ProgressStepPart", "GeneratorStepPart"));
  });
}

/// The classifiers' norm is in the verdict by which the update clips.
TEST(StepLists, OfATrainerWithASplitClassifier) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    torch::nn::Sequential model(torch::nn::Linear(3, 2));
    model->register_module("head", ParallelCrossEntropy(group, 2, 5, Sgd{.lr = 0.1}).ptr());
    TrainerWorld world(group, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const TrainerObjects objects(world);
    EXPECT_THAT(names_of(objects.step_parts),
                ElementsAre("StepNotes", "ValueCheck", "TrainedClassifiers", "UpdateStepPart",
                            "DropsStepPart", "ShardBuffers", "SharedParameters", "StatesStepPart",
                            "ProgressStepPart", "GeneratorStepPart"));
  });
}

TEST(StepLists, OfADataParallel) {
  on_workers(1, [](const Job& job) {
    torch::nn::Linear model(3, 2);
    const ParallelObjects objects(Group(job), WrappedModel(*model, {}), {}, {});
    EXPECT_THAT(names_of(objects.step_parts),
                ElementsAre("WrappedModelStepPart", "StepWeights", "CommonBuffersStepPart",
                            "SumsStepPart", "SourcesStepPart", "RowTensorsStepPart",
                            "PlacedParameters", "ParameterGradients", "SplitGradients"));
  });
}

}  // namespace
}  // namespace tutti::test::step_lists_cases
