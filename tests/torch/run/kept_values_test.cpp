// Trainer::keep(): variables of the program that belong to its run.

#include <filesystem>
#include <fstream>
#include <limits>

#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::kept_values_cases {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class KeptValues : public ::testing::Test {
 protected:
  std::string folder() const { return folder_.file("run"); }
  std::string file(const std::string& name) const { return folder_.file(name); }

 private:
  TemporaryFolder folder_;
};

/// A program that keeps one value of each kind.
struct Program {
  explicit Program(const Job& job, const TrainerOptions& options = {.shards = 3, .seed = 4})
      : model(mlp()), trainer(job, *model, Sgd{.lr = 0.1}, options) {}
  void keep_all() {
    trainer.keep("best", best);
    trainer.keep("patience", patience);
    trainer.keep("note", note);
    trainer.keep("history", history);
  }
  StepResult step() {
    return trainer.step([&](Shard& shard) {
      const Batch batch(12, static_cast<std::uint64_t>(shard.step()));
      return rows_of(shard, model, batch);
    });
  }
  torch::nn::Sequential model;
  Trainer trainer;
  double best = std::numeric_limits<double>::infinity();
  std::int64_t patience = 0;
  std::string note;
  torch::Tensor history = torch::zeros({3}, torch::kInt64);
};

// promise: trainer.h#keep
TEST_F(KeptValues, EachKindSurvivesALoadOnAnotherNumberOfWorkers) {
  const auto saved = text_of_rank_0(3, [&](const Job& job) {
    Program program(job);
    program.keep_all();
    program.best = program.step().loss;
    program.patience = -7;
    program.note = std::string("a\0b \xff", 5);                       // no text in UTF-8
    program.history = torch::tensor({5, 6, 7, 8}).slice(0, 0, 4, 2);  // of another shape, strided
    program.trainer.save(folder());
    return program.trainer.state_sha256() + std::to_string(program.best);
  });
  for (const int workers : {1, 2, 5}) {
    const auto loaded = text_of_rank_0(workers, [&](const Job& job) {
      Program program(job);
      program.keep_all();
      program.note = "other";
      program.patience = job.rank();  // what is loaded holds
      EXPECT_EQ(program.trainer.load(folder()), 1);
      EXPECT_EQ(program.patience, -7);
      EXPECT_EQ(program.note, std::string("a\0b \xff", 5));
      EXPECT_TRUE(program.history.equal(torch::tensor({5, 7})));
      program.trainer.save(file("again"));  // it is the same on all workers
      return program.trainer.state_sha256() + std::to_string(program.best);
    });
    EXPECT_EQ(loaded, saved) << workers << " workers";
  }
}

// promise: trainer.h#keep
TEST_F(KeptValues, ComeBackWithEveryBit) {
  on_workers(2, [&](const Job& job) {
    Program program(job);
    double zero = -0.0;
    double none = std::numeric_limits<double>::quiet_NaN();
    auto lowest = std::numeric_limits<std::int64_t>::min();
    std::string empty;
    auto scalar = torch::tensor(2.5F);
    program.trainer.keep("zero", zero);
    program.trainer.keep("none", none);
    program.trainer.keep("lowest", lowest);
    program.trainer.keep("empty", empty);
    program.trainer.keep("scalar", scalar);
    program.keep_all();
    program.trainer.save(folder());
    const auto hash = program.trainer.state_sha256();
    const auto same_tensor = scalar;
    zero = none = 1;
    lowest = 1;
    empty = "1";
    scalar.fill_(1);
    program.best = 1;
    EXPECT_NE(program.trainer.state_sha256(), hash);
    EXPECT_EQ(program.trainer.load(folder()), 0);
    EXPECT_TRUE(std::signbit(zero));
    EXPECT_TRUE(std::isnan(none));
    EXPECT_EQ(lowest, std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(empty, "");
    EXPECT_TRUE(std::isinf(program.best));
    EXPECT_EQ(same_tensor.item<float>(), 2.5F) << "the tensor itself is filled";
    EXPECT_EQ(program.trainer.state_sha256(), hash);
  });
}

// promise: trainer.h#keep, trainer.h#state_sha256
TEST_F(KeptValues, AreInTheHashOneByOne) {
  on_workers(1, [&](const Job& job) {
    Program program(job);
    const auto without = program.trainer.state_sha256();
    program.keep_all();
    auto before = program.trainer.state_sha256();
    EXPECT_NE(before, without);
    const auto expect_seen = [&](const char* what) {
      const auto now = program.trainer.state_sha256();
      EXPECT_NE(now, before) << what;
      before = now;
    };
    program.best = 1;
    expect_seen("a double");
    program.patience = 1;
    expect_seen("an integer");
    program.note = "x";
    expect_seen("a string");
    program.history[2] = 1;
    expect_seen("a tensor's element");
    program.history = program.history.reshape({3, 1});
    expect_seen("a tensor's shape");
  });
}

TEST_F(KeptValues, AreInTheStepLog) {
  on_workers(2, [&](const Job& job) {
    Program program(job, {.shards = 3, .seed = 4, .log = file("log.jsonl"), .hash_every = 1});
    program.keep_all();
    program.step();
    std::ifstream log(file("log.jsonl"));
    const std::string text((std::istreambuf_iterator<char>(log)), {});
    if (job.rank() != 0) return;  // it writes the log
    EXPECT_THAT(text, HasSubstr("\"kept:best\":\""));
  });
}

// promise: trainer.h#keep
TEST_F(KeptValues, AWorkerWithAnotherValueIsNamedBySave) {
  const auto expect_named = [&](const std::function<void(Program&, int)>& change,
                                const std::string& text) {
    on_workers(3, [&](const Job& job) {
      Program program(job);
      program.keep_all();
      change(program, job.rank());
      EXPECT_EQ(text_of<Mismatch>([&] { program.trainer.save(folder()); }), text);
      EXPECT_FALSE(fs::exists(folder()));
    });
  };
  const std::string same = ": what is kept is the same on all workers";
  expect_named([](Program& program, int rank) { program.best = rank == 2 ? 0.5 : 0.25; },
               "save(): kept \"best\" of \"model\" is 0.25 on rank 0, 0.5 on rank 2" + same);
  expect_named([](Program& program, int rank) { program.patience += rank == 1; },
               "save(): kept \"patience\" of \"model\" is 0 on rank 0, 1 on rank 1" + same);
  expect_named([](Program& program, int rank) { program.note = rank == 0 ? "a" : "b"; },
               "save(): kept \"note\" of \"model\" is \"a\" on rank 0, \"b\" on rank 1" + same);
  expect_named([](Program& program, int rank) { program.history[1] = rank == 2; },
               "save(): kept \"history\" of \"model\" is I64 [3] on rank 0, I64 [3] on rank "
               "2 with other bytes" +
                   same);
}

// promise: trainer.h#keep
TEST_F(KeptValues, AWorkerWithAnotherValueIsNamedBeforeAStepThatCompares) {
  on_workers(3, [&](const Job& job) {
    Program program(job);
    program.keep_all();
    program.step();  // compares for step 2
    program.best = job.rank() == 1 ? 3 : 4;
    program.step();
    EXPECT_EQ(text_of<Mismatch>([&] { program.step(); }),  // for step 4
              "before step 4: kept \"best\" of \"model\" is 4 on rank 0, 3 on rank 1: what is kept "
              "is the same on all workers");
    EXPECT_THAT(text_of<Mismatch>([&] { program.step(); }), HasSubstr("before step 4"));
  });
  on_workers(2, [&](const Job& job) {
    Program program(job, {.shards = 3, .seed = 4, .desync_check_every = 0});
    program.keep_all();
    program.best = job.rank();
    for (int k = 0; k < 4; ++k) program.step();
  });
}

// promise: trainer.h#keep
TEST_F(KeptValues, WorkersKeepTheSameNamesAndKinds) {
  on_workers(2, [&](const Job& job) {
    Program program(job);
    if (job.rank() == 1) program.trainer.keep("best", program.best);
    EXPECT_EQ(text_of<Mismatch>([&] { program.trainer.save(folder()); }),
              "save(): rank 1 keeps \"best\" in \"model\", rank 0 does not: all workers call "
              "keep() for the same names");
  });
  on_workers(2, [&](const Job& job) {
    Program program(job);
    if (job.rank() == 0) program.trainer.keep("best", program.best);
    EXPECT_THAT(text_of<Mismatch>([&] { program.trainer.load(folder()); }),
                HasSubstr("load(): rank 0 keeps \"best\" in \"model\", rank 1 does not"));
  });
  on_workers(2, [&](const Job& job) {
    Program program(job);
    if (job.rank() == 0) {
      program.trainer.keep("it", program.best);
    } else {
      program.trainer.keep("it", program.note);
    }
    EXPECT_THAT(text_of<Mismatch>([&] { program.trainer.load(folder()); }),
                HasSubstr("kept \"it\" of \"model\" is double on rank 0, string on rank 1"));
  });
}

TEST_F(KeptValues, ThatTheProgramDoesNotKeepAreRefusedAndOthersStay) {
  on_workers(2, [&](const Job& job) {
    Program program(job);
    program.keep_all();
    program.best = 2;
    program.trainer.save(folder());
  });
  on_workers(2, [&](const Job& job) {
    Program program(job);
    program.trainer.keep("best", program.best);
    program.trainer.keep("note", program.note);
    const auto before = program.trainer.state_sha256();
    EXPECT_THAT(text_of<InvalidArgument>([&] { program.trainer.load(folder()); }),
                HasSubstr("the checkpoint keeps \"history\", \"patience\", which \"model\" does "
                          "not keep here: call keep() before load()"));
    EXPECT_EQ(program.trainer.state_sha256(), before);
  });
  on_workers(2, [&](const Job& job) {
    Program program(job);
    program.keep_all();
    std::int64_t more = 17;
    program.trainer.keep("more", more);
    const LogCapture log;  // of a process
    EXPECT_EQ(program.trainer.load(folder()), 0);
    EXPECT_EQ(program.best, 2);
    EXPECT_EQ(more, 17);
    EXPECT_EQ(log.count("step-00000000 does not keep \"more\": it stays what it is"),
              job.rank() == 0 ? 1 : 0);
  });
  on_workers(2, [&](const Job& job) {
    Program program(job);
    std::int64_t best = 1;
    auto history = torch::zeros({3});
    program.trainer.keep("best", best);
    program.trainer.keep("patience", program.patience);
    program.trainer.keep("note", program.note);
    program.trainer.keep("history", history);
    EXPECT_THAT(text_of<InvalidArgument>([&] { program.trainer.load(folder()); }),
                HasSubstr("kept \"best\" of \"model\" is double in the checkpoint, int64 here"));
    EXPECT_EQ(best, 1);
  });
}

TEST_F(KeptValues, ADamagedFileIsRefused) {
  on_workers(2, [&](const Job& job) {
    Program program(job);
    program.keep_all();
    program.best = 2;
    program.trainer.save(folder());
    program.best = 3;
    if (job.rank() == 0) {
      std::fstream file(fs::path(folder()) / "step-00000000" / "kept.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('x');
    }
    program.trainer.group().barrier();
    EXPECT_THAT(text_of<Corrupt>([&] { program.trainer.load(folder()); }),
                HasSubstr("kept.safetensors"));
    EXPECT_EQ(program.best, 3);
  });
}

// promise: trainer.h#keep
TEST_F(KeptValues, WhatCannotBeKeptIsRefused) {
  on_workers(1, [&](const Job& job) {
    Program program(job);
    auto& trainer = program.trainer;
    trainer.keep("best", program.best);
    const auto refusal = [&](const std::string& name, auto& value) {
      return text_of<InvalidArgument>([&] { trainer.keep(name, value); });
    };
    EXPECT_EQ(refusal("", program.best), "keep(): a kept value needs a name");
    EXPECT_EQ(refusal("best", program.patience),
              "keep(\"best\"): \"model\" keeps a value of this name already");
    EXPECT_THAT(refusal("\xff", program.best), HasSubstr("no checkpoint can hold this name"));
    EXPECT_THAT(refusal("__metadata__", program.best), HasSubstr("can hold this name"));
    torch::Tensor undefined;
    const std::string needed = "a dense tensor on the CPU is needed: ";
    EXPECT_EQ(refusal("t", undefined), "keep(\"t\"): " + needed + "it is undefined");
    auto sparse = torch::eye(3).to_sparse();
    EXPECT_EQ(refusal("t", sparse), "keep(\"t\"): " + needed + "it is sparse");
    auto wide = torch::zeros({2}, torch::kComplexDouble);
    EXPECT_EQ(refusal("t", wide), "keep(\"t\"): " + needed +
                                      "its type is ComplexDouble, which a checkpoint cannot hold");

    std::string inside;
    trainer.step([&](Shard& shard) {
      inside = refusal("late", program.note);
      return shard.nothing();
    });
    EXPECT_THAT(inside, HasSubstr("keep(\"late\") in shard 0"));
    trainer.accumulate([&](Shard& shard) { return rows_of(shard, program.model, Batch(12, 1)); });
    EXPECT_EQ(refusal("late", program.note), "keep() between accumulate() and apply()");
    trainer.apply();

    trainer.keep("history", program.history);
    program.history = torch::Tensor();
    const std::string gone = "kept \"history\" of \"model\": it is undefined";
    EXPECT_EQ(text_of<InvalidArgument>([&] { trainer.save(folder()); }), gone);
    EXPECT_EQ(text_of<InvalidArgument>([&] { trainer.load(folder()); }), gone);
    EXPECT_EQ(text_of<InvalidArgument>([&] { trainer.state_sha256(); }), gone);
    program.history = torch::zeros({1});
    trainer.save(folder());
  });
}

}  // namespace
}  // namespace tutti::test::kept_values_cases
