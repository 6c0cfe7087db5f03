// Settings that decide how the libraries below torch round: the same on all workers, and kept in
// checkpoints.

#include "torch/model/arithmetic.h"

#include <dlfcn.h>

#include <cstdlib>

#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/model/wrapped_model.h"
#include "torch/training.h"

namespace tutti::test::arithmetic_cases {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// Sets a variable while this lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Arithmetic, KnowsWhatTorchUsesAndWhatItsLibrariesAreTold) {
  EXPECT_EQ(instruction_set(), at::get_cpu_capability());
  const Variable mkl("MKL_CBWR", "COMPATIBLE");
  const Variable onednn("ONEDNN_MAX_CPU_ISA", "SSE41");
  EXPECT_EQ(instruction_set(),
            at::get_cpu_capability() + ", MKL_CBWR=COMPATIBLE, ONEDNN_MAX_CPU_ISA=SSE41");
  EXPECT_THAT(arithmetic_facts(), Contains(::testing::Pair(
                                      "torch", ::testing::StartsWith(TORCH_VERSION " with MKL "))));
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Arithmetic, KnowsVersionsAndProcessorWithoutAnythingSet) {
  ::unsetenv("ATEN_CPU_CAPABILITY");  // which script/night sets
  const Arithmetic arithmetic = read_arithmetic();
  EXPECT_TRUE(arithmetic.settings.empty());
  EXPECT_EQ(arithmetic.instruction_set, at::get_cpu_capability());
  EXPECT_NE(arithmetic.processor.vendor, "");
  EXPECT_NE(arithmetic.c_library, "");
  EXPECT_EQ(arithmetic.mkl.empty(), !at::hasMKL());
  EXPECT_EQ(arithmetic.onednn.empty(), !at::hasMKLDNN());
  // "2024.2-Product Build 20240605", "3.12.0": a number, and no sentence around it.
  for (const std::string& version : {arithmetic.mkl, arithmetic.onednn}) {
    EXPECT_THAT(version, ::testing::MatchesRegex("|[0-9]+\\.[0-9][^()]*"));
  }
  EXPECT_EQ(cpu_level(), "");
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Arithmetic, IsPartOfThePlanThatWorkersCompare) {
  auto model = mlp();
  const auto plan = WrappedModel(*model, {}, "test").plan({{"torch", "as it was told"}});
  for (const auto& [name, value] : compared_facts(read_arithmetic())) {
    const auto key = "setting \"" + name + '"';
    EXPECT_THAT(plan.lines(), Contains(key + ' ' + (name == "torch" ? "as it was told" : value)));
    EXPECT_TRUE(plan.remedies().contains(key)) << key;
  }
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Arithmetic, WorkersThatRoundOtherwiseAreNamedAtTheStart) {
  for (const bool with_trainer : {false, true}) {
    const auto outcome = run_process_ranks(2, [&](const Job& job) {
      if (job.rank() == 1) ::setenv("MKL_CBWR", "COMPATIBLE", 1);
      auto model = mlp();
      if (with_trainer) {
        const Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
      } else {
        const DataParallel parallel(job, *model);
      }
    });
    for (const auto& rank : outcome.ranks) {
      EXPECT_THAT(rank.text,
                  AllOf(HasSubstr("setting \"instruction set\" is " + at::get_cpu_capability()),
                        HasSubstr(", MKL_CBWR=COMPATIBLE"), HasSubstr("rank 1"),
                        HasSubstr("rank 0"), HasSubstr("`tutti run --cpu avx2`")));
    }
  }
}

// With its dynamic choice MKL takes fewer threads than it was told, as it sees fit, and rounds
// otherwise.
// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Arithmetic, MklKeepsToTheNumberOfThreads) {
  const auto set_dynamic =
      reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "MKL_Set_Dynamic"));
  const auto is_dynamic =
      reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "mkl_serv_get_dynamic"));
  if (set_dynamic == nullptr || is_dynamic == nullptr)
    GTEST_SKIP() << "this libtorch shows no MKL that could be asked";
  on_workers(1, [&](const Job& job) {
    for (const bool with_trainer : {false, true}) {
      set_dynamic(1);
      EXPECT_EQ(is_dynamic(), 1);
      auto model = mlp();
      if (with_trainer) {
        const Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
      } else {
        const DataParallel parallel(job, *model);
      }
      EXPECT_EQ(is_dynamic(), 0);
    }
  });
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Arithmetic, ACheckpointThatWasComputedOtherwiseIsTakenWithAWarning) {
  const LogCapture log;
  const TemporaryFolder folder;
  const auto job = Job::join();
  torch::manual_seed(3);
  auto model = mlp();
  Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
  const auto compute = [&](Shard& shard) { return rows_of(shard, model, Batch(12, 1)); };
  trainer.step(compute);
  {
    const Variable onednn("ONEDNN_MAX_CPU_ISA", "SSE41");
    trainer.save(folder.file("run"));
  }
  const auto left = trainer.state_sha256();
  trainer.step(compute);
  EXPECT_EQ(trainer.load(folder.file("run")), 1);
  EXPECT_EQ(trainer.state_sha256(), left);
  EXPECT_THAT(log.lines(), Contains(AllOf(HasSubstr("warning: "), HasSubstr("instruction set is"),
                                          HasSubstr("ONEDNN_MAX_CPU_ISA=SSE41"))));
  trainer.save(folder.file("run"));
  const int warned = log.count("arithmetic");
  EXPECT_EQ(trainer.load(folder.file("run")), 1);
  EXPECT_EQ(log.count("arithmetic"), warned);
}

// As the number of threads: a level is part of the run.
// promise: launcher#one-instruction-set-for-all-workers
TEST(Arithmetic, ACheckpointOfAnotherLevelIsOneOfAnotherRun) {
  const TemporaryFolder folder;
  const auto job = Job::join();
  const auto trained = [&](const std::string& level) {
    std::vector<std::unique_ptr<Variable>> variables;
    if (!level.empty()) {
      for (const auto& [name, value] : find_cpu_level(level)->settings()) {
        variables.push_back(std::make_unique<Variable>(name.c_str(), value.c_str()));
      }
    }
    torch::manual_seed(3);
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const auto text = text_of([&] { trainer.load(folder.file("run")); });
    if (trainer.steps() == 0 && text.empty()) {
      trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(12, 1)); });
      trainer.save(folder.file("run"));
    }
    return text;
  };
  EXPECT_EQ(trained("avx2"), "");
  EXPECT_EQ(trained("avx2"), "");
  EXPECT_THAT(trained("default"), HasSubstr("cpu level is avx2 in the checkpoint, default here"));
  EXPECT_THAT(trained(""), HasSubstr("cpu level is avx2 in the checkpoint, not set here"));
  EXPECT_EQ(trained("avx2"), "");
}

}  // namespace
}  // namespace tutti::test::arithmetic_cases
