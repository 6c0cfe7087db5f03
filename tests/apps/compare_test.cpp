// `tutti compare`, as a user runs it.

#include <gmock/gmock.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "run/log/step_log.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// What a run of four digests logs; from a step on, those named are others.
struct SampleRun {
  int every = 1;
  int steps = 6;
  int spoiled_from = 1000;
  std::vector<std::string> spoiled = {};
  RunFingerprint facts = {{"seed", "1"}, {"shards", "8"}};
};

const std::vector<std::string> kNames = {"z.weight", "z.weight/exp_avg", "a.bias", "buffer:1.mean"};

NamedDigests digests_of(const SampleRun& run, int step) {
  NamedDigests digests;
  for (const std::string& name : kNames) {
    const bool spoiled =
        step >= run.spoiled_from &&
        std::find(run.spoiled.begin(), run.spoiled.end(), name) != run.spoiled.end();
    digests.emplace_back(name, std::to_string(step) + name + (spoiled ? "!" : ""));
  }
  return digests;
}

class Compare : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const SampleRun& run, int done = 0) const {
    const std::string path = folder_.file(name);
    StepLog log(host_files(), path, run.facts, done);
    for (int step = done + 1; step <= run.steps; ++step) {
      log.metrics(step, {.loss = std::numeric_limits<double>::quiet_NaN()});
      if (step % run.every == 0) log.digests(step, digests_of(run, step));
    }
    return path;
  }
  void append(const std::string& path, const std::string& text) const {
    std::ofstream(path, std::ios::app | std::ios::binary) << text;
  }
  /// The error's text, after its exit status and that nothing else was said were checked.
  std::string refusal(const std::string& a, const std::string& b) const {
    const auto run = run_command({"compare", a, b});
    EXPECT_EQ(run.status, 2) << run.out;
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(lines_of(run.err).size(), 1U) << run.err;
    return run.err;
  }

  TemporaryFolder folder_;
  std::string a_ = write("a.jsonl", {});
};

TEST_F(Compare, EqualRuns) {
  const auto run = run_command({"compare", a_, write("b.jsonl", {})});
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out,
            "A: digests of 6 steps (1 … 6)\nB: digests of 6 steps (1 … 6)\n"
            "equal in 6 common steps (1 … 6)\n");
}

// promise: launcher#tutti-compare, numerics#seeing-it
TEST_F(Compare, NamesTheFirstStepAndAllThatDiffersThere) {
  const auto b = write("b.jsonl", {.spoiled_from = 4,
                                   .spoiled = {"a.bias", "z.weight/exp_avg"},
                                   .facts = {{"seed", "2"}, {"shards", "8"}}});
  const std::string expected =
      "A: digests of 6 steps (1 … 6)\nB: digests of 6 steps (1 … 6)\n"
      "facts: seed is 1 in A, 2 in B\n"
      "equal in 3 earlier common steps (1 … 3)\n"
      "first difference: step 4, parameter \"z.weight/exp_avg\"\n"
      "at step 4, 2 of 4 differ:\n  \"z.weight/exp_avg\"\n  \"a.bias\"\n";
  const auto run = run_command({"compare", a_, b});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, expected);
}

TEST_F(Compare, ADifferenceInTheFirstStepAndInTheLastAreFound) {
  const auto buffer = write("b.jsonl", {.spoiled_from = 1, .spoiled = {"buffer:1.mean"}});
  const auto first = run_command({"compare", a_, buffer});
  EXPECT_EQ(first.status, 1);
  EXPECT_THAT(first.out, HasSubstr("\nfirst difference: step 1, \"buffer:1.mean\"\n"));
  EXPECT_THAT(first.out, Not(HasSubstr("earlier")));
  const auto last =
      run_command({"compare", write("c.jsonl", {.spoiled_from = 6, .spoiled = {"z.weight"}}), a_});
  EXPECT_EQ(last.status, 1);
  EXPECT_THAT(last.out, HasSubstr("\nfirst difference: step 6, parameter \"z.weight\"\n"));
}

TEST_F(Compare, StepsThatBothHave) {
  const auto b = write("b.jsonl", {.every = 2});
  const auto c =
      write("c.jsonl", {.every = 3, .steps = 12, .spoiled_from = 3, .spoiled = {"a.bias"}});
  EXPECT_EQ(run_command({"compare", a_, b}).out,
            "A: digests of 6 steps (1 … 6)\nB: digests of 3 steps (2 … 6)\n"
            "equal in 3 common steps (2 … 6)\n");
  const auto run = run_command({"compare", b, c});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.out,
            "A: digests of 3 steps (2 … 6)\nB: digests of 4 steps (3 … 12)\n"
            "first difference: step 6, parameter \"a.bias\"\n"
            "at step 6, 1 of 4 differ:\n  \"a.bias\"\n");
}

TEST_F(Compare, AnEndWithinALineIsNoted) {
  const auto b = write("b.jsonl", {.steps = 4});
  append(b, R"({"kind":"digests","step":5,"digests":{"z.wei)");
  const auto run = run_command({"compare", a_, b});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.out, HasSubstr("\nnote: B ends within line 10, which is passed over"));
  EXPECT_THAT(run.out, HasSubstr("\nequal in 4 common steps (1 … 4)\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("note: A")));
}

TEST_F(Compare, AResumedRunIsComparedByWhatItWroteLast) {
  const SampleRun spoiled{.spoiled_from = 4, .spoiled = {"a.bias"}};
  const auto b = write("b.jsonl", spoiled);
  EXPECT_EQ(run_command({"compare", a_, b}).status, 1);
  write("b.jsonl", {}, 3);
  const auto run = run_command({"compare", a_, b});
  EXPECT_EQ(run.status, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr("equal in 6 common steps (1 … 6)\n"));
  write("b.jsonl", spoiled, 3);
  EXPECT_THAT(run_command({"compare", a_, b}).out, HasSubstr("first difference: step 4,"));
}

TEST_F(Compare, LongListsAreCut) {
  const auto path = [&](const char* name, const char* digest) {
    NamedDigests digests;
    for (int i = 0; i < 13; ++i) digests.emplace_back("p" + std::to_string(i), digest);
    StepLog(host_files(), folder_.file(name), {}, 0).digests(1, digests);
    return folder_.file(name);
  };
  const auto run = run_command({"compare", path("x", "a"), path("y", "b")});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.out, HasSubstr("at step 1, 13 of 13 differ:\n  \"p0\"\n"));
  EXPECT_THAT(run.out, HasSubstr("  \"p9\"\n  … and 3 more\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("p10")));
}

TEST_F(Compare, OrderAndSpellingAreNoDifference) {
  const auto b = folder_.file("b.jsonl");
  StepLog(host_files(), b, {{"seed", "1"}, {"shards", "8"}}, 0);
  append(b, R"({ "step": 2, "digests": {"z.weight": "2z.weight", "a.bias": "2a.bias",
)");
  EXPECT_THAT(refusal(a_, b), HasSubstr(b + " line 2 is not JSON: error at byte"));
  StepLog(host_files(), b, {}, 0);
  append(b,
         R"({ "step": 2, "digests": {"z.weight": "2z.weight", "buffer:1.mean": "2buffer:1.mean",)"
         R"( "a.bias": "2a.bias", "z.weight\/exp_avg": "2z.weight/exp_avg"}, "kind":"digests"})"
         "\n");
  EXPECT_EQ(run_command({"compare", a_, b}).status, 0);
}

TEST_F(Compare, WhatCannotBeComparedIsStatusTwo) {
  const auto b = folder_.file("b.jsonl");
  EXPECT_EQ(refusal(a_, b), "tutti compare: there is no " + b + "\n");
  EXPECT_EQ(refusal(a_, folder_.file("")), "tutti compare: " + folder_.file("") + " is a folder, " +
                                               a_ +
                                               " is a file: give two step logs or two "
                                               "checkpoints\n");
  write("b.jsonl", {.every = 7, .steps = 8});
  EXPECT_EQ(refusal(a_, b),
            "tutti compare: no step has digests in both: A has digests of 6 steps (1 … 6), B has "
            "digests of 1 step (7)\n");
  write("b.jsonl", {.every = 9});
  EXPECT_THAT(refusal(a_, b), HasSubstr("B has no digests\n"));
  StepLog(host_files(), b, {}, 0).digests(2, {{"z.weight", "x"}, {"\x1b[2J", "x"}});
  EXPECT_THAT(refusal(a_, b), HasSubstr("the runs have other parameters: at step 2, "
                                        "\"z.weight/exp_avg\" is only in A\n"));
  EXPECT_THAT(refusal(b, a_), HasSubstr("\"?[2J\" is only in A\n"));
  auto more = digests_of({}, 2);
  more.emplace_back("more", "x");
  StepLog(host_files(), b, {}, 0).digests(2, more);
  EXPECT_THAT(refusal(a_, b), HasSubstr("at step 2, \"more\" is only in B\n"));
  std::ofstream(b) << "step,loss\n1,2.5\n";
  EXPECT_THAT(refusal(a_, b), HasSubstr(b + " line 1 is not JSON"));
}

TEST_F(Compare, AMalformedLineIsNamed) {
  const auto b = write("b.jsonl", {.steps = 2});
  append(b, "oops\n");
  append(b, R"({"kind":"metrics","step":3})"
            "\n");
  EXPECT_EQ(refusal(a_, b), "tutti compare: " + b + " line 6 is not JSON: error at byte 1\n");
}

TEST_F(Compare, WrongUseSaysSo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"compare"}, {"compare", "a"}, {"compare", "a", "b", "c"}}) {
    const auto run = run_command(arguments);
    EXPECT_EQ(run.status, 2);
    EXPECT_THAT(run.err, HasSubstr("See tutti compare --help."));
  }
  const auto help = run_command({"compare", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit status: 0 equal, 1 different, 2 not comparable."));
  EXPECT_THAT(run_command({"--help"}).out, HasSubstr("tutti compare a.jsonl b.jsonl"));
}

}  // namespace
}  // namespace tutti
