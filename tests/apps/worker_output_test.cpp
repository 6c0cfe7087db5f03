#include "apps/tutti/run/worker_output.h"

#include <gmock/gmock.h>

#include "support/running_command.h"

namespace tutti::command {
namespace {

using ::testing::ElementsAre;

/// A worker's output whose lines are read from its log.
struct Logged {
  TemporaryFolder folder;
  Output output;
  WorkerOutput worker{output, 0, 1, folder.file("log")};

  void take(std::string_view bytes) { worker.take(Stream::out, bytes); }
  std::vector<std::string> lines() const { return lines_of(read_file(folder.file("log"))); }
};

TEST(WorkerOutput, HasLinesOnlyWhenTheyAreWhole) {
  Logged logged;
  logged.take("fir");
  EXPECT_THAT(logged.lines(), ElementsAre());
  logged.take("st\nsecond\nthi");
  EXPECT_THAT(logged.lines(), ElementsAre("first", "second"));
  logged.take("\n\nhalf");
  EXPECT_THAT(logged.lines(), ElementsAre("first", "second", "thi", ""));
  logged.worker.finish(Stream::out);
  logged.worker.finish(Stream::out);
  EXPECT_THAT(logged.lines(), ElementsAre("first", "second", "thi", "", "half"));
}

TEST(WorkerOutput, OfARewrittenLineHasTheLastStateWhereverItIsCut) {
  const std::string text = "a\r\nb\rc\n\nd\r\r\ne\rf\rg";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Logged logged;
    logged.take(text.substr(0, cut));
    logged.take(text.substr(cut));
    logged.worker.finish(Stream::out);
    EXPECT_THAT(logged.lines(), ElementsAre("a", "c", "", "d", "g")) << "cut at " << cut;
  }
}

TEST(WorkerOutput, HandsAnEndlessLineOnInPieces) {
  Logged logged;
  for (int part = 0; part < 3; ++part) logged.take(std::string(kLongestLine / 2 + 1, 'x'));
  logged.take("end\n");
  EXPECT_THAT(logged.lines(), ElementsAre(std::string(kLongestLine + 2, 'x'),
                                          std::string(kLongestLine / 2 + 1, 'x') + "end"));
}

}  // namespace
}  // namespace tutti::command
