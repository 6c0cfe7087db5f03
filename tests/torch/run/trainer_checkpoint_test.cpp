// A run that stops and goes on, on another number of workers, ends with the bytes of one that never
// stopped. And checkpoints that are not taken.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "job/job_state.h"
#include "job/rendezvous/thread_rendezvous.h"
#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::trainer_checkpoint_cases {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class TrainerCheckpoint : public ::testing::Test {
 protected:
  std::string folder() const { return folder_.file("run"); }

 private:
  TemporaryFolder folder_;
};

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 70), torch::nn::BatchNorm1d(70),
                               torch::nn::Dropout(0.3), torch::nn::Linear(70, 3));
}

ShardAnswer loss_of(Shard& shard, torch::nn::Sequential& model) {
  const auto samples = shard.indices(50, 4);
  if (samples.size() < 2) return shard.nothing();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const auto data = torch::randn({50, 6}, generator);
  const auto rows = torch::tensor(samples);
  return shard.loss(model->forward(data.index_select(0, rows)).square().mean(),
                    static_cast<double>(samples.size()));
}

TrainerOptions options() {
  return {.shards = 5, .seed = 4, .schedule = Schedule::cosine(20), .clip = {.norm = 0.1}};
}

/// Steps up to `until`, from the folder's checkpoint where there is one; saves at the end. The hash
/// of the state.
std::string run(int workers, std::int64_t until, const std::string& folder) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(static_cast<std::uint64_t>(until));  // what is loaded holds
    auto model = net();
    Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
    if (!folder.empty()) trainer.load(folder);
    if (folder.empty() || trainer.steps() == 0) {
      trainer.edit([&] {
        const torch::NoGradGuard no_grad;
        torch::manual_seed(1);
        for (auto& parameter : model->parameters()) parameter.normal_();
      });
    }
    while (trainer.steps() < until) {
      trainer.step([&](Shard& shard) { return loss_of(shard, model); });
    }
    if (!folder.empty()) trainer.save(folder);
    return trainer.state_sha256();
  });
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not, trainer.h#save
TEST_F(TrainerCheckpoint, ARunGoesOnOnAnotherNumberOfWorkersAsIfItHadNeverStopped) {
  const auto whole = run(1, 8, "");
  for (const std::int64_t stop : {1, 3, 5}) {
    fs::remove_all(folder());
    run(3, stop, folder());
    run(1, 6, folder());
    EXPECT_EQ(run(2, 8, folder()), whole) << "stopped after step " << stop;
  }
}

// promise: trainer.h#load
TEST_F(TrainerCheckpoint, AnotherRunIsRefusedWithTheDifferences) {
  on_workers(2, [&](const Job& job) {
    auto model = net();
    {
      Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
      EXPECT_FALSE(trainer.load(folder()));
      trainer.step([&](Shard& shard) { return loss_of(shard, model); });
      EXPECT_EQ(trainer.save(folder()), folder() + "/step-00000001");
    }
    auto other_options = options();
    other_options.seed = 5;
    other_options.shards = 6;
    Trainer other(job, *model, AdamW{.lr = 1e-2}, other_options);
    const auto before = other.state_sha256();
    EXPECT_THAT(text_of<InvalidArgument>([&] { other.load(folder() + "/step-00000001"); }),
                HasSubstr("is one checkpoint: give the folder that it lies in"));
    EXPECT_THAT(text_of([&] { other.load(folder()); }),
                AllOf(HasSubstr("is a checkpoint of another run"),
                      HasSubstr("seed is 4 in the checkpoint, 5 here"),
                      HasSubstr("shards is 5 in the checkpoint, 6 here")));
    EXPECT_EQ(other.state_sha256(), before);
  });
}

// promise: schedule.h#Schedule, trainer.h#load
TEST_F(TrainerCheckpoint, ThatOfAnotherModelOrOfOtherWaysIsRefused) {
  run(1, 1, folder());
  on_workers(2, [&](const Job& job) {
    const auto expect_refusal = [&](torch::nn::Sequential model, const TrainerOptions& options,
                                    const std::string& difference) {
      Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options);
      const auto before = trainer.state_sha256();
      EXPECT_THAT(text_of<InvalidArgument>([&] { trainer.load(folder()); }),
                  AllOf(HasSubstr("is a checkpoint of another run"), HasSubstr(difference)));
      EXPECT_EQ(trainer.state_sha256(), before);
    };
    auto other = options();
    other.clip = {.norm = 0.25};
    expect_refusal(net(), other, "0.25");
    other = options();
    other.schedule = Schedule::cosine(30);
    expect_refusal(net(), other, "schedule");
    other = options();
    other.ema_decay = 0.5;
    expect_refusal(net(), other, "ema_decay");
    other = options();
    other.loss_scale = {.start = 2};
    expect_refusal(net(), other, "loss scale");
    other = options();
    other.buffers = {
        {[](const std::string& name) { return name == "1.running_mean"; }, BufferRule::keep}};
    expect_refusal(net(), other, "running_mean");
    other = options();
    other.compression.codec = half_codec();
    expect_refusal(net(), other, "codec");
    expect_refusal(torch::nn::Sequential(torch::nn::Linear(6, 70), torch::nn::BatchNorm1d(70)),
                   options(), "3.weight");
    expect_refusal(torch::nn::Sequential(torch::nn::Linear(6, 71), torch::nn::BatchNorm1d(71),
                                         torch::nn::Dropout(0.3), torch::nn::Linear(71, 3)),
                   options(), "0.weight");
  });
}

/// Averages go on where they were.
TEST_F(TrainerCheckpoint, AveragesAreSavedAndFollowOn) {
  const auto averaged = [&](int workers, std::int64_t until, const std::string& folder) {
    return text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = net();
      auto with_average = options();
      with_average.ema_decay = 0.75;
      Trainer trainer(job, *model, AdamW{.lr = 1e-2}, with_average);
      if (!folder.empty()) trainer.load(folder);
      while (trainer.steps() < until) {
        trainer.step([&](Shard& shard) { return loss_of(shard, model); });
      }
      if (!folder.empty()) trainer.save(folder);
      std::string hash;
      trainer.with_ema([&] { hash = parameters_sha256(*model); });
      return hash;
    });
  };
  const auto whole = averaged(1, 6, "");
  averaged(3, 3, folder());
  EXPECT_EQ(averaged(2, 6, folder()), whole);
}

/// Two runs, one after the other, save to one folder.
// promise: trainer.h#of_this_run
TEST_F(TrainerCheckpoint, ARestartGoesOnFromWhatItsOwnRunHasSaved) {
  on_workers(1, [&](const Job&) {
    LogCapture log;
    const auto job_of = [](const std::string& run) {
      return Job(std::make_shared<JobState>(Identity{.run = run}, host_system(),
                                            ThreadRendezvous().rendezvous(0), JobOptions{}));
    };
    auto model = net();
    const auto save_steps = [&](const std::string& run, std::int64_t from, std::int64_t until) {
      Trainer trainer(job_of(run), *model, AdamW{.lr = 1e-2}, options());
      if (from > 0) trainer.load(folder(), {.of_this_run = true});
      EXPECT_EQ(trainer.steps(), from);
      while (trainer.steps() < until) {
        trainer.step([&](Shard& shard) { return loss_of(shard, model); });
        trainer.save(folder());
      }
      return trainer.state_sha256();
    };
    save_steps("first", 0, 3);
    {
      Trainer trainer(job_of("second"), *model, AdamW{.lr = 1e-2}, options());
      EXPECT_FALSE(trainer.load(folder(), {.of_this_run = true}));
      EXPECT_EQ(trainer.load(folder()), 3);
    }
    EXPECT_THAT(log.lines(), Not(Contains(HasSubstr("was there before"))));
    const auto second = save_steps("second", 0, 2);
    EXPECT_THAT(log.lines(), Contains(HasSubstr("step 1 lies beside one of step 3")));
    {
      Trainer trainer(job_of("second"), *model, AdamW{.lr = 1e-2}, options());
      EXPECT_EQ(trainer.load(folder(), {.of_this_run = true}), 2);
      EXPECT_EQ(trainer.state_sha256(), second);
    }
    std::ofstream(folder() + "/step-00000003/manifest.json") << "";  // may be anybody's
    {
      Trainer trainer(job_of("third"), *model, AdamW{.lr = 1e-2}, options());
      EXPECT_THAT(text_of<Corrupt>([&] { trainer.load(folder(), {.of_this_run = true}); }),
                  HasSubstr("step-00000003/manifest.json"));
      EXPECT_FALSE(trainer.load(folder(), {.fall_back = true, .of_this_run = true}));
      EXPECT_EQ(trainer.load(folder(), {.fall_back = true}), 2);
    }
    std::filesystem::remove_all(folder() + "/step-00000003");
    save_steps("second", 2, 4);
    Trainer trainer(job_of("first"), *model, AdamW{.lr = 1e-2}, options());
    EXPECT_FALSE(trainer.load(folder(), {.of_this_run = true}));  // replaced
    auto other = mlp();
    Trainer nameless(job_of(""), *other, AdamW{}, options());
    EXPECT_THAT(text_of<InvalidArgument>([&] { nameless.load(folder(), {.of_this_run = true}); }),
                HasSubstr("no identity of a run"));
  });
}

// The older run's later step was taken.
// findings-3: D4
TEST_F(TrainerCheckpoint, TheBestOfThisRunIsLoadedBesideALaterStepOfAnOlderOne) {
  on_workers(1, [&](const Job&) {
    const auto job_of = [](const std::string& run) {
      return Job(std::make_shared<JobState>(Identity{.run = run}, host_system(),
                                            ThreadRendezvous().rendezvous(0), JobOptions{}));
    };
    auto model = net();
    const auto train = [&](const std::string& run, std::int64_t until) {
      Trainer trainer(job_of(run), *model, AdamW{.lr = 1e-2}, options());
      while (trainer.steps() < until) {
        trainer.step([&](Shard& shard) { return loss_of(shard, model); });
        if (trainer.steps() % 2 == 1) trainer.save(folder(), {.keep = 1});
      }
      const auto saved = trainer.state_sha256();
      trainer.step([&](Shard& shard) { return loss_of(shard, model); });
      EXPECT_EQ(trainer.load(folder()), until) << "of run " << run;
      EXPECT_EQ(trainer.state_sha256(), saved);
    };
    train("first", 7);
    train("second", 3);
    {
      Trainer trainer(job_of("third"), *model, AdamW{.lr = 1e-2}, options());
      EXPECT_EQ(trainer.load(folder()), 3) << "of the run that has saved last";
    }
    // Where its only one is damaged, an older run's is what a fallback can take.
    std::ofstream(folder() + "/step-00000003/parameters.safetensors") << "";
    {
      Trainer trainer(job_of("third"), *model, AdamW{.lr = 1e-2}, options());
      EXPECT_THAT(text_of<Corrupt>([&] { trainer.load(folder()); }), HasSubstr("step-00000003"));
      EXPECT_EQ(trainer.load(folder(), {.fall_back = true}), 7);
    }
    train("fourth", 3);
    std::filesystem::remove_all(folder() + "/step-00000003");  // by hand
    {
      Trainer trainer(job_of("fifth"), *model, AdamW{.lr = 1e-2}, options());
      EXPECT_EQ(trainer.load(folder()), 7);
    }
    train("fifth", 5);
  });
  for (const int workers : {2, 3}) {
    on_workers(workers, [&](const Job& job) {
      auto model = net();
      Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
      EXPECT_EQ(trainer.load(folder()), 5);
    });
  }
}

// promise: trainer.h#fall_back
TEST_F(TrainerCheckpoint, ADamagedOneIsRefusedAndPassedOverOnlyWhenAsked) {
  on_workers(2, [&](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
    const auto step = [&] { trainer.step([&](Shard& shard) { return loss_of(shard, model); }); };
    step();
    trainer.save(folder());
    const auto first = trainer.state_sha256();
    step();
    trainer.save(folder());
    if (job.rank() == 0) {
      std::fstream file(fs::path(folder()) / "step-00000002" / "optimizer.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('x');
    }
    trainer.group().barrier();
    const auto before = trainer.state_sha256();
    EXPECT_THAT(text_of<Corrupt>([&] { trainer.load(folder()); }),
                AllOf(HasSubstr("optimizer.safetensors"),
                      HasSubstr(". LoadOptions::fall_back passes over it: "),
                      HasSubstr("step-00000001 is whole")));
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_EQ(trainer.load(folder(), {.fall_back = true}), 1);
    EXPECT_EQ(trainer.state_sha256(), first);
    step();
    EXPECT_EQ(trainer.state_sha256(), before);
    if (job.rank() == 0) fs::resize_file(fs::path(folder()) / "step-00000001/manifest.json", 9);
    trainer.group().barrier();
    EXPECT_THAT(text_of<Corrupt>([&] { trainer.load(folder()); }),
                Not(HasSubstr("LoadOptions::fall_back")));
    EXPECT_THAT(text_of<Corrupt>([&] { trainer.load(folder(), {.fall_back = true}); }),
                HasSubstr("none of the checkpoints in " + folder() + " is good"));
    EXPECT_EQ(trainer.state_sha256(), before);
  });
}

// promise: trainer.h#load
TEST_F(TrainerCheckpoint, OneOfAnotherNumberOfThreadsIsRefused) {
  on_workers(1, [&](const Job& job) {
    auto model = net();
    {
      Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
      trainer.save(folder());
    }
    at::set_num_threads(2);
    Trainer other(job, *model, AdamW{.lr = 1e-2}, options());
    EXPECT_THAT(text_of<InvalidArgument>([&] { other.load(folder()); }),
                HasSubstr("intra-op threads is 1 in the checkpoint, 2 here"));
  });
}

/// Loads as a program does that takes an older checkpoint for a damaged one, and lets all else
/// pass.
std::optional<std::int64_t> load_what_is_whole(Trainer& trainer, const std::string& folder) {
  try {
    return trainer.load(folder);
  } catch (const Corrupt&) {
    return trainer.load(folder, {.fall_back = true});
  }
}

// promise: error.h#Corrupt, trainer.h#load
TEST_F(TrainerCheckpoint, AProgramThatCatchesCorruptGetsWhatAFallBackHelpsAndNoMistakeOfItsOwn) {
  using Damage = std::function<void(const fs::path&)>;
  const auto put = [](const fs::path& file, char byte) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put(byte);
  };
  const std::vector<Damage> damages = {
      [&](const fs::path& step) { put(step / "parameters.safetensors", 'x'); },
      [](const fs::path& step) { fs::resize_file(step / "optimizer.safetensors", 100); },
      [](const fs::path& step) { fs::remove(step / "buffers.safetensors"); },
      [&](const fs::path& step) { put(step / "manifest.json", 'x'); },
      [](const fs::path& step) { fs::remove(step / "manifest.json"); },
  };
  on_workers(2, [&](const Job& job) {
    auto model = net();
    auto trainer = std::make_unique<Trainer>(job, *model, AdamW{.lr = 1e-2}, options());
    const auto on_rank_0 = [&](const Damage& damage) {
      if (job.rank() == 0) damage(fs::path(folder()) / "step-00000002");
      trainer->group().barrier();
    };
    trainer->step([&](Shard& shard) { return loss_of(shard, model); });
    trainer->save(folder());
    for (const auto& damage : damages) {
      trainer->step([&](Shard& shard) { return loss_of(shard, model); });
      trainer->save(folder());
      on_rank_0(damage);
      EXPECT_EQ(load_what_is_whole(*trainer, folder()), 1);
      on_rank_0([](const fs::path& step) { fs::remove_all(step); });
    }
    // A mistake of the program's is of another class, on all workers.
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { load_what_is_whole(*trainer, folder() + "/step-00000001"); }),
                HasSubstr("is one checkpoint"));
    trainer.reset();
    auto typo = options();
    typo.seed = 44;
    trainer = std::make_unique<Trainer>(job, *model, AdamW{.lr = 1e-2}, typo);
    EXPECT_THAT(text_of<InvalidArgument>([&] { load_what_is_whole(*trainer, folder()); }),
                HasSubstr("seed is 4 in the checkpoint, 44 here"));
  });
}

/// A limit on the size of files stands for a disk that is full: the same writes fail.
// promise: error.h#IoError, trainer.h#load, trainer.h#save
TEST_F(TrainerCheckpoint, AFullDiskLeavesTheLastCheckpointAndTrainingGoesOn) {
  on_workers(2, [&](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
    const auto step = [&] {
      trainer.step([&](Shard& shard) { return loss_of(shard, model); });
      return trainer.state_sha256();
    };
    step();
    trainer.save(folder());
    const auto saved = trainer.state_sha256();
    const auto second = step();
    signal(SIGXFSZ, SIG_IGN);
    rlimit free{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &free), 0);
    const rlimit full{1000, free.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    try {
      trainer.save(folder());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const IoError& error) {
      EXPECT_EQ(error.code(), EFBIG);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(folder()), HasSubstr("File too large")));
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &free), 0);
    EXPECT_EQ(trainer.state_sha256(), second);
    const auto third = step();
    EXPECT_EQ(trainer.load(folder()), 1);
    EXPECT_EQ(trainer.state_sha256(), saved);
    EXPECT_EQ(step(), second);
    EXPECT_EQ(step(), third);
    trainer.save(folder());
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST_F(TrainerCheckpoint, WhatCannotBeWrittenIsSaidOnAllAndTrainingGoesOn) {
  on_workers(2, [&](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, AdamW{.lr = 1e-2}, options());
    EXPECT_THAT(text_of<IoError>([&] { trainer.save("/proc/nowhere"); }),
                HasSubstr("/proc/nowhere"));
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return loss_of(shard, model); }).applied);
  });
}

}  // namespace
}  // namespace tutti::test::trainer_checkpoint_cases
