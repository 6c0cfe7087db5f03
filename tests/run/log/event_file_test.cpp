#include "run/log/event_file.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "run/files/faulty_files.h"
#include "run/log/step_curves.h"
#include "support/event_reader.h"
#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Pair;
using Values = std::vector<std::pair<std::string, double>>;

class EventFileTest : public ::testing::Test {
 protected:
  Events events() const { return events_in(folder_.file("runs/first")); }
  EventFile file() const { return {host_files(), folder_.file("runs/first")}; }

  TemporaryFolder folder_;
};

TEST_F(EventFileTest, HasValuesByNameAndStep) {
  ASSERT_EQ(crc32c("123456789"), 0xE3069283);
  auto written = file();
  written.scalars(1, Values{{"loss", 2.5}, {"rate", 0.1}});
  written.scalars(300, Values{{"loss", -1e-3}});
  written.scalars(std::int64_t{1} << 40, Values{{"loss", std::numeric_limits<double>::infinity()}});
  const auto read = events();
  EXPECT_THAT(read.versions, ElementsAre("brain.Event:2"));
  EXPECT_THAT(read.curves.at("loss"),
              ElementsAre(Pair(1, 2.5F), Pair(300, -1e-3F),
                          Pair(std::int64_t{1} << 40, std::numeric_limits<float>::infinity())));
  EXPECT_THAT(read.curves.at("rate"), ElementsAre(Pair(1, 0.1F)));
}

// The bytes that tensorboard 2.21 writes of an event of time 1.5 and step 7, whose value is
// {tag: "a", simple_value: 0.5}: what of a record is not the time of its writing.
TEST_F(EventFileTest, HasTheRecordsThatTensorBoardWrites) {
  const auto record_of = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), {});
    return all.substr(all.size() - 39);
  };
  auto written = file();
  written.scalars(7, Values{{"a", 0.5}});
  const auto record = record_of(*events().files.begin());
  const std::string after_time(
      "\x10\x07\x2a\x0a\x0a\x08\x0a\x01"
      "a\x15\x00\x00\x00\x3f",
      14);
  EXPECT_EQ(record.substr(0, 12), std::string("\x17\0\0\0\0\0\0\0\xe7\xce\xf8\x1e", 12));
  EXPECT_EQ(record.substr(12 + 9, 14), after_time);
  EXPECT_EQ(record.size(), 12U + 23 + 4);
}

TEST_F(EventFileTest, TakesBackWhatARunThatGoesOnWritesAgain) {
  {
    auto first = file();
    for (int step = 1; step <= 5; ++step) first.scalars(step, Values{{"loss", step}});
  }
  auto second = file();
  second.resume(3);
  second.scalars(4, Values{{"loss", 40}});
  const auto read = events();
  EXPECT_EQ(read.files.size(), 2U);
  EXPECT_THAT(read.curves.at("loss"),
              ElementsAre(Pair(1, 1.F), Pair(2, 2.F), Pair(3, 3.F), Pair(4, 40.F)));
}

TEST_F(EventFileTest, OfOneFolderIsOneForAllWhoWriteThere) {
  const auto folder = folder_.file("runs/first");
  const auto one = event_file_in(folder);
  EXPECT_EQ(event_file_in(folder + "/../first"), one);
  EXPECT_NE(event_file_in(folder_.file("runs/second")), one);
  EXPECT_EQ(events().files.size(), 1U);
}

TEST_F(EventFileTest, CountsHowValuesAreDistributed) {
  std::vector<double> values(1000);
  std::iota(values.begin(), values.end(), -500.);
  values.push_back(std::numeric_limits<double>::quiet_NaN());
  values.push_back(-std::numeric_limits<double>::infinity());
  file().histogram(3, "weights", Histogram::of(values).value());
  const auto read = events().histograms.at("weights").at(3);
  EXPECT_EQ(read.minimum, -500);
  EXPECT_EQ(read.maximum, 499);
  EXPECT_EQ(read.count, 1000);
  EXPECT_EQ(read.sum, -500);
  EXPECT_EQ(read.squares, 2 * 499. * 500 * 999 / 6 + 250000);
  ASSERT_EQ(read.limits.size(), read.counts.size());
  EXPECT_EQ(std::accumulate(read.counts.begin(), read.counts.end(), 0.), 1000);
  for (std::size_t k = 0; k < read.limits.size(); ++k) {
    const double below = k == 0 ? -std::numeric_limits<double>::infinity() : read.limits[k - 1];
    EXPECT_LT(below, read.limits[k]);
    const auto is_there = [&](double value) { return value >= below && value < read.limits[k]; };
    EXPECT_EQ(std::count_if(values.begin(), values.end() - 2, is_there), read.counts[k]) << k;
  }
  EXPECT_EQ(read.counts.front() > 0 && read.counts.back() > 0, true);
}

TEST(HistogramOf, ValuesAtTheEndsOfTheScale) {
  using Limits = std::numeric_limits<double>;
  EXPECT_EQ(Histogram::of(std::vector<double>{}), std::nullopt);
  EXPECT_EQ(Histogram::of(std::vector<double>{Limits::quiet_NaN()}), std::nullopt);
  for (const double value : {0., -0., 1e-300, -1e-300, Limits::max(), -Limits::max(), 1.}) {
    const auto one = Histogram::of(std::vector<double>{value});
    ASSERT_TRUE(one) << value;
    EXPECT_THAT(one->counts, ElementsAre(1)) << value;
    EXPECT_GE(one->limits.front(), value);
  }
}

TEST_F(EventFileTest, OfARunHasTheStepsResults) {
  StepCurves curves(event_file_in(folder_.file("runs/first")), {0.5, 0.25}, 0);
  curves.add(1, {.loss = 3,
                 .weight = 8,
                 .gradient_norm = 0.5,
                 .rate_factor = 0.5,
                 .metrics = Metrics({{.name = "all", .kind = MetricKind::gather, .values = {1, 2}},
                                     {.name = "tokens", .value = 7, .values = {}}})});
  curves.pass(8);
  curves.add(3, {.applied = false, .dropped_because = "inf", .weight = 8, .loss_scale = 1024});
  const auto read = events();
  EXPECT_THAT(read.curves, ElementsAre(Pair("metrics/tokens", ElementsAre(Pair(1, 7.F))),
                                       Pair("speed/steps_per_second", ElementsAre(Key(3))),
                                       Pair("speed/weight_per_second", ElementsAre(Key(3))),
                                       Pair("step/dropped", ElementsAre(Pair(3, 1.F))),
                                       Pair("step/gradient_norm", ElementsAre(Pair(1, 0.5F))),
                                       Pair("step/learning_rate/0", ElementsAre(Pair(1, 0.25F))),
                                       Pair("step/learning_rate/1", ElementsAre(Pair(1, 0.125F))),
                                       Pair("step/loss", ElementsAre(Pair(1, 3.F))),
                                       Pair("step/loss_scale", ElementsAre(Pair(3, 1024.F))),
                                       Pair("step/weight", ElementsAre(Pair(1, 8.F)))));
  EXPECT_FLOAT_EQ(read.curves.at("speed/weight_per_second").at(3),
                  8 * read.curves.at("speed/steps_per_second").at(3));
}

}  // namespace
}  // namespace tutti::test
