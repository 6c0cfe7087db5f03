// What a step and a run say that they cost.

#include "tutti/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/traffic.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

// promise: step_report.h#text
TEST(StepReport, IsOneLine) {
  StepReport report{.step = 17,
                    .collectives = 1,
                    .max_sent_bytes = 33'600'000,
                    .dense_bytes = 34'500'000,
                    .waits = 3,
                    .wait_seconds = 0.0125,
                    .parameters_skipped = 2,
                    .leaves = 8,
                    .weight = 64,
                    .nodes_held = 5,
                    .last_worker = 4};
  EXPECT_EQ(report.text(),
            "step 17: 1 exchange of 33.60 of 34.50 MB, 2 parameters skipped, 8 micro-batches of "
            "weight 64, 5 "
            "gradient copies held, waited 3 times for 12.500 ms, rank 4 was ready last");
  report.exposed_seconds = 0.004;
  EXPECT_THAT(report.text(), HasSubstr("12.500 ms, 4.000 ms for gradients between hosts, "));
}

// promise: traffic.h#density, traffic.h#table
TEST(TrafficReport, TableHasALineForEachBucketAndOneOfTheSum) {
  BucketTraffic one{.parameters = "embedding.weight",
                    .elements = 1000,
                    .messages = 4,
                    .values = 50,
                    .touched = 1000,
                    .bytes = 400,
                    .bytes_dense = 4000};
  BucketTraffic other{.parameters = "head.bias",
                      .elements = 10,
                      .messages = 4,
                      .values = 10,
                      .touched = 10,
                      .bytes = 40,
                      .bytes_dense = 40};
  EXPECT_EQ(one.density(), 0.05);
  EXPECT_EQ(BucketTraffic().density(), 0);
  TrafficReport report;
  report.steps = 3;
  report.collectives = 3;
  report.all_steps = {one, other};
  const std::string table = report.table();
  EXPECT_THAT(table, HasSubstr("embedding.weight"));
  EXPECT_THAT(table, HasSubstr("head.bias"));
  EXPECT_TRUE(table.ends_with("\n"));
  const auto line_of = [&](const std::string& name) {
    const auto at = table.find(name);
    return std::count(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  };
  EXPECT_LT(line_of("embedding.weight"), line_of("head.bias"));
  EXPECT_GT(std::count(table.begin(), table.end(), '\n'), line_of("head.bias") + 1) << table;
}

}  // namespace
}  // namespace tutti::test
