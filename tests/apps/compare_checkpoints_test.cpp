// `tutti compare` of two checkpoints, as a user runs it.

#include <gmock/gmock.h>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "run/files/checkpoint_store.h"
#include "support/running_command.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// The values of a small checkpoint.
struct Values {
  std::int64_t step = 200;
  std::string seed = "1";
  std::int64_t epoch = 3;
  std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  std::vector<std::int64_t> shape = {2, 3};
  std::vector<double> moment = {0.5, -0.25};
  std::vector<std::int64_t> counts = {7, 8, 9};
  std::string name = "0.weight";
};

template <class Element>
std::span<const std::byte> bytes_of(const std::vector<Element>& values) {
  return std::as_bytes(std::span(values));
}

class CompareCheckpoints : public ::testing::Test {
 protected:
  std::string save(const std::string& name, const Values& values) const {
    const CheckpointContent content{.step = values.step,
                                    .facts = {{"seed", values.seed}},
                                    .state = {{"epoch", values.epoch}},
                                    .files = {{.name = "optimizer.safetensors",
                                               .tensors = {{.name = "0.weight/exp_avg",
                                                            .type = StoredType::F64,
                                                            .shape = {2},
                                                            .data = bytes_of(values.moment)},
                                                           {.name = "counts",
                                                            .type = StoredType::I64,
                                                            .shape = {3},
                                                            .data = bytes_of(values.counts)}}},
                                              {.name = "parameters.safetensors",
                                               .tensors = {{.name = values.name,
                                                            .type = StoredType::F32,
                                                            .shape = values.shape,
                                                            .data = bytes_of(values.weight)}}}}};
    CheckpointStore store(host_files(), folder_.file(name));
    store.save(content);
    return store.open(values.step).folder();
  }
  Finished compare_with(const Values& values) const {
    return run_command({"compare", a_, save("b", values)});
  }
  std::string refusal(const std::string& b) const {
    const auto run = run_command({"compare", a_, b});
    EXPECT_EQ(run.status, 2) << run.out;
    EXPECT_EQ(run.out, "");
    return run.err;
  }

  TemporaryFolder folder_;
  std::string a_ = save("a", {});
};

TEST_F(CompareCheckpoints, Equal) {
  const auto run = compare_with({.seed = "2"});
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.out, "facts: seed is 1 in A, 2 in B\nequal: step 200, 3 tensors\n");
  EXPECT_EQ(run.err, "");
  const std::string copy = folder_.file("a copy");
  fs::copy(a_, copy);
  EXPECT_EQ(run_command({"compare", a_ + "/", copy}).status, 0) << "whatever their names";
}

TEST_F(CompareCheckpoints, NamesTensorsAndHowFarApartTheyAre) {
  const auto run = compare_with({.weight = {1, 2.5, 3, 4, 5, 5.75}, .counts = {7, 8, -9}});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.out,
            "2 of 3 tensors differ:\n"
            "  \"counts\" of optimizer.safetensors: 1 of 3 elements differ\n"
            "  \"0.weight\" of parameters.safetensors: 2 of 6 elements differ, by at most 0.5\n");
}

TEST_F(CompareCheckpoints, BytesCountAndNotValues) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  a_ = save("a", {.weight = {0, 2, 3, 4, 5, 6}, .moment = {nan, 1e-9}});
  EXPECT_EQ(compare_with({.weight = {0, 2, 3, 4, 5, 6}, .moment = {nan, 1e-9}}).status, 0);
  const auto run = compare_with({.weight = {-0.0F, 2, 3, 4, 5, 6}, .moment = {1, 2e-9}});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.out, HasSubstr("1 of 6 elements differ, by at most 0\n"));
  EXPECT_THAT(run.out, HasSubstr("2 of 2 elements differ, one of them by NaN\n"));
}

TEST_F(CompareCheckpoints, WhereTheRunsStandCounts) {
  const auto run = compare_with({.step = 300, .epoch = 4});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.out,
            "the runs stand at other places:\n  step: 200 in A, 300 in B\n  state \"epoch\": 3 in "
            "A, 4 in B\n0 of 3 tensors differ\n");
}

TEST_F(CompareCheckpoints, WhatCannotBeComparedIsStatusTwo) {
  EXPECT_EQ(refusal(save("b", {.shape = {3, 2}})),
            "tutti compare: the checkpoints are of other models: \"0.weight\" of "
            "parameters.safetensors is F32 [2, 3] in A, F32 [3, 2] in B\n");
  EXPECT_THAT(refusal(save("b", {.name = "1.weight"})),
              HasSubstr("\"0.weight\" of parameters.safetensors is only in A\n"));
  EXPECT_EQ(refusal(folder_.file("b")), "tutti compare: " + folder_.file("b") +
                                            " is no checkpoint: it has no manifest.json. "
                                            "Of a folder of checkpoints, name one: " +
                                            folder_.file("b") + "/step-…\n");
  const std::string b = save("b", {});
  EXPECT_THAT(refusal(b + "/manifest.json"), HasSubstr("is a folder"));
  std::ofstream(b + "/parameters.safetensors", std::ios::app) << "x";
  EXPECT_THAT(refusal(b), HasSubstr("/parameters.safetensors has "));
  CheckpointStore store(host_files(), folder_.file("c"));
  store.save({.step = 200});
  EXPECT_THAT(refusal(folder_.file("c/step-00000200")),
              HasSubstr("hold other files: \"optimizer.safetensors\" is only in A\n"));
}

}  // namespace
}  // namespace tutti
