#include "timeline_merge.h"

#include <gmock/gmock.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "refusal.h"
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

TEST(MergeTimelines, KeepsAllEventsInOrder) {
  const std::vector<std::string> parts = {R"({"traceEvents":[{"name":"a"},{"name":"b"}]})",
                                          R"({"traceEvents":[]})",
                                          R"({"traceEvents":[{"name":"c"}]})"};
  EXPECT_THAT(names(merge_timelines(parts)), ElementsAre("a", "b", "c"));
}

TEST(MergeTimelines, RefusesATruncatedPart) {
  const std::vector<std::string> parts = {R"({"traceEvents":[]})", R"({"traceEvents":[{"na)"};
  try {
    merge_timelines(parts);
    FAIL();
  } catch (const Refusal& refusal) {
    EXPECT_STREQ(refusal.what(), "part 1: not a complete timeline");
  }
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

TEST(MergeTimelineFiles, DoesNothingWithoutParts) {
  const TemporaryFolder folder;
  EXPECT_THAT(merge_timeline_files(folder.file("run.json"), 2), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder.file("run.json")));
}

}  // namespace
}  // namespace tutti::command
