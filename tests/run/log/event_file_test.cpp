#include "run/log/event_file.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>

#include <gmock/gmock.h>

#include "run/files/faulty_files.h"
#include "run/log/step_curves.h"
#include "support/event_reader.h"
#include "support/running_command.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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
  std::filesystem::create_directory_symlink(folder, folder_.file("link"));
  for (const auto& name :
       {folder + "/", folder + "/../first", folder_.file("link"), folder_.file("runs//first/.")}) {
    EXPECT_EQ(event_file_in(name), one) << name;
  }
  EXPECT_NE(event_file_in(folder_.file("runs/second")), one);
  EXPECT_THAT(events().files, IsEmpty()) << "no value yet";
}

TEST_F(EventFileTest, ARunFromTheStartLeavesAloneWhatItHasWrittenItself) {
  {
    auto older = file();
    older.scalars(1, Values{{"loss", 1}});
    older.scalars(2, Values{{"loss", 2}});
  }
  auto one = file();
  one.resume(0);
  one.scalars(1, Values{{"planned", 10}});
  one.resume(0);
  one.scalars(1, Values{{"loss", 100}});
  EXPECT_THAT(events().curves, ElementsAre(Pair("loss", ElementsAre(Pair(1, 100.F))),
                                           Pair("planned", ElementsAre(Pair(1, 10.F)))));
}

// TensorBoard reads files in the order of their names, as texts.
TEST_F(EventFileTest, NewFilesComeAfterAllThatAreThere) {
  const auto folder = std::filesystem::path(folder_.file("runs/first"));
  std::filesystem::create_directories(folder);
  const auto far =
      folder / "events.out.tfevents.4102444800.other.99999.0";  // a clock that is ahead
  std::ofstream(far).close();
  for (int step = 1; step <= 12; ++step) {
    auto one = file();
    one.resume(step - 1);
    one.scalars(step, Values{{"loss", step}});
    one.scalars(step + 1, Values{{"loss", -1}});
  }
  const auto read = events();
  EXPECT_EQ(*read.files.begin(), far.string());
  EXPECT_EQ(read.files.size(), 13U);
  EXPECT_EQ(read.curves.at("loss").size(), 13U);
  EXPECT_EQ(read.curves.at("loss").at(12), 12);
}

TEST_F(EventFileTest, RefusesNamesThatNoReaderTakes) {
  auto written = file();
  EXPECT_THROW(written.scalars(1, Values{{"good", 1}, {"caf\xe9", 1}}), InvalidArgument);
  EXPECT_THROW(written.histogram(1, "caf\xe9", Histogram::of(std::vector<double>{1}).value()),
               InvalidArgument);
  written.scalars(2, Values{{"größe/α", 3}});
  EXPECT_THAT(events().curves, ElementsAre(Pair("größe/α", ElementsAre(Pair(2, 3.F)))));
}

// What is left of a record hides all behind it from TensorBoard.
TEST_F(EventFileTest, TakesBackWhatADiskHasNoRoomFor) {
  for (const auto fault : {Fault::disk_full, Fault::refuse_once}) {
    for (int at = 1; at < 12; ++at) {
      std::filesystem::remove_all(folder_.file("runs/first"));
      const auto files = std::make_shared<FaultyFiles>(fault, at);
      int missing = 0;
      const auto attempt = [&](const auto& work) {
        try {
          work();
        } catch (const IoError&) {
          ++missing;
        }
      };
      std::optional<EventFile> written;
      attempt([&] { written.emplace(files, folder_.file("runs/first")); });
      if (!written) continue;
      for (int step = 1; step <= 3; ++step) {
        // Longer than what is written at once.
        attempt([&] {
          written->scalars(step, Values{{std::string(9000, 'x'), 1}, {"loss", step}});
        });
      }
      const auto read = events();  // throws where bytes are left over
      const auto found = read.curves.contains("loss") ? read.curves.at("loss").size() : 0;
      EXPECT_EQ(found + static_cast<std::size_t>(missing), 3U) << at;
      EXPECT_LE(read.files.size(), 1U);
      if (fault == Fault::refuse_once) {
        EXPECT_LE(missing, 1) << at;
      }
    }
  }
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
