#include "apps/tutti/run/timeline_merge.h"

#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/timeline.h"
#include "support/refused_calls.h"
#include "support/running_command.h"

namespace tutti::command {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::vector<std::string> names(const std::string& timeline) {
  std::vector<std::string> found;
  const auto parsed = nlohmann::json::parse(timeline);
  for (const auto& event : parsed["traceEvents"]) found.push_back(event["name"]);
  return found;
}

TEST(MergeTimelineFiles, MergesAndRemovesTheParts) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  write(timeline_part(file, 0), R"({"traceEvents":[{"name":"a"}]})");
  write(timeline_part(file, 2), R"({"traceEvents":[{"name":"c"}]})");
  EXPECT_THAT(merge_timeline_files(file, 3), IsEmpty());
  EXPECT_THAT(names(read_file(file)), ElementsAre("a", "c"));
  EXPECT_FALSE(std::filesystem::exists(timeline_part(file, 0)));
  EXPECT_FALSE(std::filesystem::exists(timeline_part(file, 2)));
}

// promise: launcher#when-the-others-resume, launcher#where-the-time-goes
TEST(MergeTimelineFiles, LeavesABadPartAndSaysSo) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  write(timeline_part(file, 0), R"({"traceEvents":[{"name":"a"}]})");
  write(timeline_part(file, 1), "{\"traceEv");
  EXPECT_THAT(merge_timeline_files(file, 2),
              ElementsAre(HasSubstr("run.json.rank1: not a complete timeline; left out")));
  EXPECT_THAT(names(read_file(file)), ElementsAre("a"));
  EXPECT_TRUE(std::filesystem::exists(timeline_part(file, 1)));
}

TEST(MergeTimelineFiles, KeepsAllEventsInOrder) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  write(timeline_part(file, 0), R"({"traceEvents":[{"name":"a"},{"name":"b","args":{"x":[1]}}]})");
  write(timeline_part(file, 1), R"({"traceEvents":[]})");
  write(timeline_part(file, 2), R"({"traceEvents":[{"name":"c"}]})");
  EXPECT_THAT(merge_timeline_files(file, 3), IsEmpty());
  EXPECT_THAT(names(read_file(file)), ElementsAre("a", "b", "c"));
}

// promise: launcher#where-the-time-goes
TEST(MergeTimelineFiles, TakesWhatTimelineWrites) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  for (int rank = 0; rank < 3; ++rank) {
    Timeline timeline(file, rank, 3);
    for (int event = 0; rank < 2 && event < 5000; ++event)  // more than is copied at a time
      timeline.add("a name with \"]}\" in it, to be longer", {}, {});
  }
  EXPECT_THAT(merge_timeline_files(file, 3), IsEmpty());
  EXPECT_EQ(names(read_file(file)).size(), 2U * 5001 + 1);
}

TEST(MergeTimelineFiles, APartThatIsCutOffAnywhereIsNotTaken) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  const std::string whole = R"({"traceEvents":[{"name":"a ]} b"},{"name":"]}"}]})";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(timeline_part(file, 0), whole.substr(0, size));
    EXPECT_THAT(merge_timeline_files(file, 1),
                ElementsAre(HasSubstr("run.json.rank0: not a complete timeline; left out")));
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST(MergeTimelineFiles, StopsWhenItIsToldTo) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  write(timeline_part(file, 0), R"({"traceEvents":[{"name":"a"}]})");
  write(timeline_part(file, 1), R"({"traceEvents":[{"name":"b"}]})");
  int asked = 0;
  EXPECT_THAT(
      merge_timeline_files(file, 2, [&] { return ++asked == 2; }),
      ElementsAre(HasSubstr("run.json: interrupted; the workers' parts are left as they are")));
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file + ".merging"));
  EXPECT_TRUE(std::filesystem::exists(timeline_part(file, 0)));
}

int descriptor_of(const std::string& path) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    if (read_symlink(entry.path(), ignored) == path) return std::stoi(entry.path().filename());
  return -1;
}

// promise: launcher#where-the-time-goes
TEST(MergeTimelineFiles, WhatOnlyTheEndOfTheFileShowsToBeLostIsSaid) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  write(timeline_part(file, 0), R"({"traceEvents":[{"name":"a"}]})");
  write(timeline_part(file, 1), R"({"traceEvents":[{"name":"b"}]})");
  int merged = -1;
  const auto refuse_close = [&] {
    if (merged >= 0) return false;
    merged = descriptor_of(file + ".merging");
    RefusedCalls calls;
    calls.add(SYS_close, merged, ENOSPC);
    EXPECT_TRUE(calls.install());
    return false;
  };
  std::thread([&] {
    EXPECT_THAT(merge_timeline_files(file, 2, refuse_close),
                ElementsAre(HasSubstr("run.json: No space left on device; the workers' parts are "
                                      "left as they are")));
  }).join();
  EXPECT_EQ(close(merged), 0);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_FALSE(std::filesystem::exists(file + ".merging"));
  for (const int rank : {0, 1}) EXPECT_TRUE(std::filesystem::exists(timeline_part(file, rank)));
}

TEST(MergeTimelineFiles, DoesNothingWithoutParts) {
  const TemporaryFolder folder;
  EXPECT_THAT(merge_timeline_files(folder.file("run.json"), 2), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder.file("run.json")));
}

}  // namespace
}  // namespace tutti::command
