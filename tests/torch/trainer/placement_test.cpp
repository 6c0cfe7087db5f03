// Parameters that one logical worker alone updates: the bytes of a run without owners, and what
// codecs leave alone.

#include "support/debug_log.h"
#include "support/log_capture.h"
#include "torch/exact_cases.h"

namespace tutti::test::owner_cases {
namespace {

using exact::tables;
using ::testing::HasSubstr;

std::optional<std::int64_t> owner_of(const std::string& name) {
  if (name == "words.weight") return 1;
  if (name == "output.weight") return 2;
  return {};
}

/// Of the state after each of three steps.
std::string train(int workers, TrainerOptions options) {
  options.shards = 5;
  options.logical_workers = 3;
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(7);
    const auto task = tables();
    Trainer trainer(job, *task.module, Adam{.lr = 0.01, .weight_decay = 0.1}, options);
    std::string hashes;
    while (trainer.steps() < 3) {
      const auto result = trainer.step([&](Shard& shard) { return exact::answer_of(task, shard); });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      hashes += trainer.state_sha256();
    }
    return hashes;
  });
}

// promise: trainer_options.h#placement
TEST(Owner, DecidesNoBitWithoutACodec) {
  for (const double clip : {0.0, 0.01}) {
    const TrainerOptions shared{.clip = {.norm = clip}};
    auto owned = shared;
    owned.placement = owner_of;
    const auto alone = train(1, shared);
    for (const int workers : {1, 2, 3, 5, 8}) EXPECT_EQ(train(workers, owned), alone) << workers;
  }
}

// promise: trainer_options.h#placement
TEST(Owner, KeepsItsGradientOutOfACodec) {
  const TrainerOptions options{.compression = {.codec = top_k_codec(0.1)}, .placement = owner_of};
  const auto alone = train(1, options);
  for (const int workers : {2, 3, 5}) EXPECT_EQ(train(workers, options), alone) << workers;
  EXPECT_NE(train(1, {.compression = {.codec = top_k_codec(0.1)}}), alone);

  on_workers(2, [](const Job& job) {
    const auto gradient = [&](const TrainerOptions& some, const std::string& name) {
      torch::manual_seed(7);
      const auto task = tables();
      Trainer trainer(job, *task.module, Adam{}, some);
      trainer.accumulate([&](Shard& shard) { return exact::answer_of(task, shard); });
      const auto found = trainer.gradient(name);
      trainer.apply();
      EXPECT_EQ(trainer.traffic().collectives, 1);
      if (some.compression.codec && some.placement) {
        std::uint64_t owned_bytes = 0;
        for (const auto& group : trainer.traffic().all_steps) {
          if (group.parameters == "output.weight") owned_bytes = group.bytes;
        }
        EXPECT_EQ(owned_bytes, 2u * 2 * 120 * 4);  // there and back, of two workers
      }
      return found;
    };
    const TrainerOptions plain{.shards = 5, .logical_workers = 3};
    auto coded = plain;
    coded.compression.codec = top_k_codec(0.1);
    auto owned = coded;
    owned.placement = owner_of;
    const auto exact = gradient(plain, "output.weight");
    EXPECT_TRUE(torch::equal(gradient(owned, "output.weight"), exact));
    EXPECT_FALSE(torch::equal(gradient(coded, "output.weight"), exact));
    EXPECT_FALSE(torch::equal(gradient(owned, "output.bias"), gradient(plain, "output.bias")));
  });
}

// The row-sparse one was left out.
TEST(Owner, TheLogSaysHowManyHaveOne) {
  on_workers(1, [](const Job& job) {
    const DebugLog debug;
    LogCapture log;
    const auto task = tables();
    const Trainer trainer(job, *task.module, Adam{},
                          {.shards = 4, .logical_workers = 3, .placement = owner_of});
    EXPECT_EQ(log.count("2 parameters with an owner"), 1);
  });
}

TEST(Owner, OptionsThatMakeNoSenseAreRefused) {
  on_workers(1, [](const Job& job) {
    const auto task = tables();
    const auto refusal = [&](const TrainerOptions& options, const Optimizer& optimizer = Adam{}) {
      return text_of([&] { Trainer(job, *task.module, optimizer, options); });
    };
    EXPECT_THAT(
        refusal({.shards = 4, .placement = owner_of}),
        HasSubstr("\"words.weight\" is owned by logical worker 1: logical_workers = 1 has 0 to 0"));
    EXPECT_THAT(refusal({.shards = 4, .placement = [](const std::string&) { return -2; }}),
                HasSubstr("has the owner -2: they count from 0"));
    EXPECT_THAT(
        refusal({.shards = 4,
                 .logical_workers = 3,
                 .per_replica = [](const std::string& name) { return name == "output.weight"; },
                 .placement = owner_of}),
        HasSubstr("\"output.weight\" has an owner, and is per replica"));
    EXPECT_THAT(
        refusal({.shards = 4,
                 .logical_workers = 3,
                 .placement = [](const std::string& name) -> std::optional<std::int64_t> {
                   return name == "output.weight" ? std::optional<std::int64_t>(0) : std::nullopt;
                 }},
                Optimizer(Adam{}).group(
                    [](const std::string& name) { return name == "output.weight"; },
                    torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2)))),
        HasSubstr("\"output.weight\" has an owner, with"));
  });
}

}  // namespace
}  // namespace tutti::test::owner_cases
