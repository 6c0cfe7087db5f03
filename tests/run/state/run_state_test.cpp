// What the parts of a run list is saved, loaded, hashed and logged, in their order.

#include "run/state/run_state.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>

#include "run/files/faulty_files.h"
#include "run/state/progress_run_parts.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A matrix of two rows of three, a column after the other in memory, and a number.
class Matrix : public RunPart {
 public:
  explicit Matrix(std::string name, float first, StateFile file = StateFile::parameters)
      : RunPart(std::move(name)), file_(file) {
    for (auto& value : values) value = first++;
  }
  void list(StateTensors& tensors) const override {
    tensors[file_].push_back({.name = name(),
                              .type = StoredType::F32,
                              .shape = shape,
                              .strides = {1, 2},
                              .data = reinterpret_cast<std::byte*>(values.data())});
  }
  void write(nlohmann::json& state) const override { state[name()] = number; }
  void check(const nlohmann::json& state) const override {
    state.at(name()).get<int>();
    if (refusal) throw InvalidArgument(refusal);
  }
  std::vector<std::byte> read(const Checkpoint& /*checkpoint*/) const override {
    return {static_cast<std::byte>(number), static_cast<std::byte>(name().front())};
  }
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override {
    number = state.at(name()).get<int>();
    got.assign(read.begin(), read.end());
  }
  void hash_parameter(std::size_t parameter, Sha256& hash) const override {
    hash.update(&values[parameter], sizeof(float));
  }
  void hash(Sha256& hash) const override { hash.update(&number, sizeof number); }

  mutable std::array<float, 6> values{};
  std::vector<std::int64_t> shape = {2, 3};
  int number = 0;
  const char* refusal = nullptr;
  std::vector<std::byte> got;

 private:
  StateFile file_;
};

/// A state of two parts, and access to them.
struct Two {
  explicit Two(float first)
      : a(&state.add<Matrix>("a", first)),
        b(&state.add<Matrix>("b", first + 10, StateFile::masters)) {}
  RunState state;
  Matrix* a;
  Matrix* b;
};

class State : public ::testing::Test {
 protected:
  CheckpointStore store() const { return {host_files(), folder_.file("run")}; }
  Checkpoint saved(const Two& two) const {
    auto to = store();
    two.state.write(to, {.step = 3});
    return store().open(3);
  }
  TemporaryFolder folder_;
};

TEST_F(State, WhatPartsListComesBackOnAllWorkers) {
  Two first(1);
  first.a->number = 7;
  first.b->number = 8;
  const auto checkpoint = saved(first);
  EXPECT_EQ(checkpoint.manifest().state.at("a"), 7);
  std::array<float, 6> rows{};
  const auto file = checkpoint.file("parameters.safetensors");
  file.read(file.tensors()[0], std::as_writable_bytes(std::span(rows)));
  EXPECT_THAT(rows, ElementsAre(1, 3, 5, 2, 4, 6));

  Two reader(100);
  Two other(200);  // shares the tensors of `reader`, were it a worker
  const auto message = reader.state.read(checkpoint);
  EXPECT_EQ(reader.a->number, 0) << "restored before all were found to fit";
  reader.state.restore(message);
  other.state.restore(message);
  EXPECT_EQ(reader.a->values, first.a->values);
  EXPECT_EQ(reader.b->values, first.b->values);
  for (const auto* two : {&reader, &other}) {
    EXPECT_EQ(two->a->number, 7);
    EXPECT_EQ(two->b->number, 8);
    EXPECT_THAT(two->a->got, ElementsAre(static_cast<std::byte>(0), static_cast<std::byte>('a')));
    EXPECT_THAT(two->b->got, ElementsAre(static_cast<std::byte>(0), static_cast<std::byte>('b')));
  }
  EXPECT_EQ(reader.state.sha256(6), first.state.sha256(6));
}

TEST_F(State, OnePartThatRefusesLeavesAllAsItWas) {
  const auto checkpoint = saved(Two(1));
  const auto expect_refused = [&](const std::function<void(Two&)>& change, const char* text) {
    Two two(100);
    change(two);
    const auto before = two.state.sha256(6);
    EXPECT_THAT(text_of([&] { two.state.read(checkpoint); }), HasSubstr(text));
    EXPECT_EQ(two.state.sha256(6), before) << text;
  };
  expect_refused([](Two& two) { two.b->refusal = "b knows better"; }, "b knows better");
  expect_refused(
      [](Two& two) {
        two.b->shape = {3, 2};
      },
      "masters.safetensors: \"b\" is F32 [2, 3], here it is F32 [3, 2]");
  expect_refused([](Two& two) { two.state.add<Matrix>("c", 0.0F); },
                 "its manifest lacks where the run stands: c (");
  expect_refused(
      [](Two& two) {
        class Silent : public Matrix {
         public:
          Silent() : Matrix("c", 0) {}
          void check(const nlohmann::json& /*state*/) const override {}
        };
        two.state.add<Silent>();
      },
      "parameters.safetensors lacks \"c\"");
}

TEST_F(State, WhatAWorkerAloneHasIsGatheredForAllPartsAndReleased) {
  /// A part that notes the calls.
  class Alone : public RunPart {
   public:
    Alone(std::string name, std::vector<std::string>& calls)
        : RunPart(std::move(name)), calls_(calls) {}
    void gather(const Gather& gather) override {
      const auto mine = std::as_bytes(std::span(name()));
      for (const auto& theirs : gather(mine)) calls_.push_back("gathered " + text(theirs));
    }
    void release() override { calls_.push_back("released " + name()); }

   private:
    static std::string text(std::span<const std::byte> bytes) {
      return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    std::vector<std::string>& calls_;
  };
  std::vector<std::string> calls;
  RunState state;
  state.add<Alone>("a", calls);
  state.add<Alone>("b", calls);
  state.gather([](std::span<const std::byte> mine) {
    const std::vector<std::byte> bytes(mine.begin(), mine.end());
    return std::vector{bytes, bytes};
  });
  EXPECT_THAT(calls, ElementsAre("gathered a", "gathered a", "gathered b", "gathered b"));
  calls.clear();
  state.release();
  EXPECT_THAT(calls, ElementsAre("released a", "released b"));
}

TEST_F(State, ACheckpointsOwnNumbersStayBesideThoseOfTheParts) {
  const Two two(1);
  auto to = store();
  two.state.write(to, {.step = 3, .state = {{"arithmetic", "fast"}}});
  const auto state = store().open(3).manifest().state;
  EXPECT_EQ(state.at("arithmetic"), "fast");
  EXPECT_EQ(state.at("a"), 0);
}

TEST_F(State, AReadThatFailsHalfWayIsNoRefusal) {
  saved(Two(1));
  const auto files = std::make_shared<FaultyFiles>();
  const auto checkpoint = CheckpointStore(files, folder_.file("run")).open(3);
  int half = 0;
  for (int reads = 0;; ++reads) {
    ASSERT_LT(reads, 1000);
    Two two(100);
    const auto before = two.state.sha256(6);
    files->refuse_reads_after(reads);
    try {
      two.state.read(checkpoint);
      break;
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("Input/output error, after other tensors had been"));
      half += two.state.sha256(6) != before;
    } catch (const IoError& error) {
      EXPECT_EQ(error.code(), EIO);
      EXPECT_EQ(two.state.sha256(6), before) << reads << " reads";
    }
  }
  EXPECT_GT(half, 0);
}

TEST_F(State, ATensorThatThisRunDoesNotHaveIsRefused) {
  Two two(1);
  two.state.add<Matrix>("c", 0.0F);
  const auto checkpoint = saved(two);
  EXPECT_THAT(text_of([&] { Two(1).state.read(checkpoint); }),
              HasSubstr("parameters.safetensors holds 2 tensors, here there are 1"));
}

TEST_F(State, TheHashHasParametersOneByOneAndPartsInOrder) {
  Two two(1);
  two.a->number = 5;
  two.b->number = 6;
  Sha256 hash;
  for (std::size_t p = 0; p < 2; ++p) {
    hash.update(&two.a->values[p], sizeof(float));
    hash.update(&two.b->values[p], sizeof(float));
  }
  hash.update(&two.a->number, sizeof(int));
  hash.update(&two.b->number, sizeof(int));
  EXPECT_EQ(two.state.sha256(2), hash.hex());
}

TEST_F(State, AStepLogHasTheFilesInOrderUnderTheirNames) {
  RunState state;
  const auto add = [&](const char* name, StateFile file) { state.add<Matrix>(name, 1, file); };
  add("mean", StateFile::buffers);
  add("hidden/shard-0", StateFile::shard_states);
  add("w", StateFile::averages);
  add("best", StateFile::kept);
  add("w", StateFile::masters);
  add("w", StateFile::parameters);
  std::vector<std::string> names;
  std::string digest;
  for (const auto& [name, hex] : state.digests()) {
    names.push_back(name);
    digest = hex;
  }
  EXPECT_THAT(names, ElementsAre("w", "w/master", "buffer:mean", "w/average", "kept:best"));
  const std::array<float, 6> rows = {1, 3, 5, 2, 4, 6};
  Sha256 hash;
  hash.update(rows.data(), sizeof rows);
  EXPECT_EQ(digest, hash.hex());
}

// ---- the checkpoint that a run loads ----

class OpenCheckpoint : public State {
 protected:
  OpenCheckpoint() {
    for (const auto step : {3, 5}) {
      auto to = store();
      Two(1).state.write(to, {.step = step, .facts = facts_, .run = step == 3 ? "first" : "other"});
    }
  }
  /// Damages the newest one.
  void flip_a_byte() const {
    std::fstream file(folder_.file("run/step-00000005/parameters.safetensors"),
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  std::optional<Checkpoint> open(bool fall_back) const {
    return open_checkpoint(store(), facts_, fall_back, {});
  }
  RunFingerprint facts_ = {{"shards", "8"}};
};

TEST_F(OpenCheckpoint, IsTheNewestOrTheNewestOfItsRun) {
  EXPECT_EQ(open(false)->manifest().step, 5);
  EXPECT_EQ(open(true)->manifest().step, 5);
  EXPECT_EQ(open_checkpoint(store(), facts_, false, "first")->manifest().step, 3);
  EXPECT_FALSE(open_checkpoint(store(), facts_, false, "third"));
  EXPECT_FALSE(open_checkpoint(store(), facts_, true, "third"));
}

TEST_F(OpenCheckpoint, OfOtherFactsIsRefused) {
  facts_ = {{"shards", "4"}};
  for (const bool fall_back : {false, true}) {
    EXPECT_THAT(
        text_of([&] { open(fall_back); }),
        HasSubstr("is a checkpoint of another run:\nshards is 8 in the checkpoint, 4 here"));
  }
}

TEST_F(OpenCheckpoint, ADamagedOneIsPassedOverOnlyWhereThatIsAskedFor) {
  flip_a_byte();
  EXPECT_THAT(text_of<Corrupt>([&] { open(false); }),
              AllOf(HasSubstr("step-00000005/parameters.safetensors was altered"),
                    HasSubstr("LoadOptions::fall_back passes over it"),
                    HasSubstr("step-00000003 is whole")));
  EXPECT_EQ(open(true)->manifest().step, 3);
  EXPECT_THAT(text_of<Corrupt>([&] { open_checkpoint(store(), facts_, true, "other"); }),
              HasSubstr("none of the checkpoints in"));
}

TEST_F(OpenCheckpoint, AFallbackToAnotherRunIsNotRecommended) {
  flip_a_byte();
  facts_ = {{"shards", "4"}};
  EXPECT_THAT(text_of<Corrupt>([&] { open(false); }),
              AllOf(HasSubstr("was altered"), Not(HasSubstr("fall_back"))));
}

// ---- the parts that say how far a run has come ----

TEST_F(State, HowFarARunHasComeComesBack) {
  struct Progress {
    std::int64_t steps = 0;
    std::int64_t dropped = 0;
    DataOrder data{4};
    LossScaleState scale;
    Turns turns;
    RunState state;
    Progress() {
      state.add<StepsRunPart>(steps, dropped);
      state.add<DataOrderRunPart>(data);
      state.add<LossScaleRunPart>(scale);
      state.add<TurnsRunPart>(turns);
    }
  };
  Progress first;
  first.steps = 3;
  first.dropped = 2;
  first.data.restore({.epoch = 1, .taken = 6, .dataset_size = 20});
  first.scale = {.factor = 0.1, .good_steps = 17};
  for (const std::uint64_t model : {1, 2}) first.turns.note(model);
  auto to = store();
  first.state.write(to, {.step = 3});
  Progress second;
  second.state.restore(second.state.read(store().open(3)));
  EXPECT_EQ(second.steps, 3);
  EXPECT_EQ(second.dropped, 2);
  EXPECT_EQ(second.data.position(), first.data.position());
  EXPECT_EQ(second.scale.factor, 0.1);
  EXPECT_EQ(second.scale.good_steps, 17);
  EXPECT_THAT(second.turns.latest(), ElementsAre(1, 2));
}

TEST_F(State, TurnsAreInACheckpointOnlyWhereThereAreSome) {
  Turns turns;
  TurnsRunPart part(turns);
  auto state = nlohmann::json::object();
  part.write(state);
  EXPECT_EQ(state, nlohmann::json::object());
  turns.note(1);
  part.restore(state, {});
  EXPECT_TRUE(turns.latest().empty());
}

TEST_F(State, WhatNoRunCanHaveComeToIsRefused) {
  DataOrder order(1);
  const DataOrderRunPart part(order);
  const nlohmann::json state = {{"epoch", 0}, {"samples_taken", 9}, {"dataset_size", 8}};
  EXPECT_THAT(text_of([&] { part.check(state); }), HasSubstr("no position in a data set"));
  EXPECT_EQ(order.position(), DataPosition());
  const LossScaleState was{.factor = 2};
  auto scale = was;
  const LossScaleRunPart other(scale);
  EXPECT_THROW(other.check({{"loss_scale", "2"}, {"good_steps", 0}}), nlohmann::json::exception);
  EXPECT_THROW(other.check({{"loss_scale", 2}}), nlohmann::json::exception);
  std::int64_t steps = 1;
  std::int64_t dropped = 1;
  const StepsRunPart counts(steps, dropped);
  EXPECT_THROW(counts.check({{"steps", 1}}), nlohmann::json::exception);
  EXPECT_THROW(counts.check({{"dropped_in_a_row", 1}}), nlohmann::json::exception);
  Turns turns;
  const TurnsRunPart taken(turns);
  EXPECT_THROW(taken.check({{"turns", "ab"}}), nlohmann::json::exception);
}

}  // namespace
}  // namespace tutti::test
