// Settings that decide how the libraries below torch round: the same on all workers, and kept in
// checkpoints.

#include "torch/model/arithmetic.h"

#include <dlfcn.h>

#include <cstdlib>

#include "support/log_capture.h"
#include "support/running_command.h"
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
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Arithmetic, KnowsWhatTorchUsesAndWhatItsLibrariesAreTold) {
  EXPECT_EQ(instruction_set(), at::get_cpu_capability());
  const Variable mkl("MKL_CBWR", "COMPATIBLE");
  const Variable onednn("ONEDNN_MAX_CPU_ISA", "SSE41");
  EXPECT_EQ(instruction_set(),
            at::get_cpu_capability() + ", MKL_CBWR=COMPATIBLE, ONEDNN_MAX_CPU_ISA=SSE41");
  EXPECT_THAT(arithmetic_facts(),
              Contains(std::pair<const std::string, std::string>("torch", TORCH_VERSION)));
}

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
                        HasSubstr(", MKL_CBWR=COMPATIBLE"), HasSubstr("rank 1")));
    }
  }
}

// With its dynamic choice MKL takes fewer threads than it was told, as it sees fit, and rounds
// otherwise.
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

}  // namespace
}  // namespace tutti::test::arithmetic_cases
