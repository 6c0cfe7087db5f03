// Step logs that somebody else wrote, cut or damaged.

#include "run/log/step_log_reader.h"

#include <fstream>

#include <gmock/gmock.h>

#include "run/files/faulty_files.h"
#include "run/log/line_reader.h"
#include "run/log/step_log_line.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::string kHeader = R"({"format":"tutti step log","version":1,"steps":0,"facts":{}})";

std::string digests_line(int step) {
  return R"({"kind":"digests","step":)" + std::to_string(step) + R"(,"digests":{"w":"ab"}})";
}

class LogReader : public ::testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  template <class Expected = Corrupt>
  std::string refusal() const {
    return text_of<Expected>([&] { const StepLogFile file(host_files(), path_); });
  }
  /// Of a log with this line in its middle.
  std::string refusal(const std::string& line) const {
    write(kHeader + "\n" + digests_line(1) + "\n" + line + "\n" + digests_line(2) + "\n");
    return refusal();
  }
  TemporaryFolder folder_;
  std::string path_ = folder_.file("log.jsonl");
};

// promise: error.h#Corrupt, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST_F(LogReader, AMalformedLineIsNamedByItsNumber) {
  const std::string at = path_ + " line 3 ";
  const std::vector<std::pair<std::string, std::string>> all = {
      {"", "is not JSON: error at byte 1"},
      {"{\"kind\":", "is not JSON: error at byte 9"},
      {digests_line(5).substr(0, 30), "is not JSON: error at byte 31"},
      {digests_line(5) + digests_line(6), "is not JSON: error at byte"},
      {std::string("{\"kind\":\"metrics\",\"step\":1}\0 {", 30),
       "is not JSON: it holds a zero byte"},
      {"[]", "is not a JSON object"},
      {"{}", "has neither a \"kind\" nor a \"format\""},
      {R"({"kind":"digests","digests":{"w":"a"}})", "has no \"step\""},
      {R"({"kind":"metrics"})", "has no \"step\""},
      {R"({"kind":"digests","step":-1})", "has a \"step\" that counts nothing: \"-1\""},
      {R"({"kind":"digests","step":1.5})", "has a \"step\" that counts nothing: \"1.5\""},
      {R"({"kind":"digests","step":9223372036854775808})", "has a \"step\" that counts nothing"},
      {R"({"kind":"digests","step":[1]})", "has no \"step\""},
      {R"({"kind":"digests","step":1})", "has no digests"},
      {R"({"kind":"digests","step":1,"digests":{}})", "has no digests"},
      {R"({"kind":"digests","step":1,"digests":"a"})", "has digests that are not texts by name"},
      {R"({"kind":"digests","step":1,"digests":["a"]})", "has digests that are not texts by name"},
      {R"({"kind":"digests","step":1,"digests":{"w":1}})",
       "has digests that are not texts by name"},
      {R"({"kind":"digests","step":1,"digests":{"w":{"x":"a"}}})",
       "has digests that are not texts by name"},
      {R"({"kind":"digests","step":1,"digests":{"w":"a","w":"b"}})", "has \"w\" twice"},
      {R"({"kind":"digests","step":1,"step":2})", "has \"step\" twice"},
      {R"({"kind":"dance","step":1})", "is of kind \"dance\", which is not known"},
      {R"({"kind":1,"step":1})", "has a \"kind\" that is no text"},
      {R"({"kind":"metrics","step":1,"metrics":{"a":[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]}})",
       "nests objects and arrays too deeply"},
      {R"({"format":"pt","version":1,"steps":0})", "is of format \"pt\", not \"tutti step log\""},
      {R"({"format":"tutti step log","steps":0})", "has no \"version\""},
      {R"({"format":"tutti step log","version":1})", "has no \"steps\""},
      {R"({"format":"tutti step log","version":1,"steps":0,"facts":{"a":1}})",
       "has facts that are not texts by name"}};
  for (const auto& [line, text] : all)
    EXPECT_EQ(refusal(line).substr(0, at.size() + text.size()), at + text) << line;
}

TEST_F(LogReader, WhatItDoesNotKnowIsPassedOver) {
  EXPECT_EQ(refusal(R"({"kind":"digests","step":1,"wall":{"s":[1]},"digests":{"w":"a"}})"),
            "nothing was thrown");
  EXPECT_EQ(refusal(R"({"kind":"metrics","step":1,"metrics":{"step":-1,"kind":2}})"),
            "nothing was thrown")
      << "names of metrics are anything";
}

TEST_F(LogReader, ALogOfAnotherVersionIsNotOffered) {
  write(R"({"format":"tutti step log","version":2,"steps":0})"
        "\n");
  EXPECT_EQ(refusal<Unsupported>(), path_ + " line 1 has version 2; this build reads version 1");
}

TEST_F(LogReader, AFileWithoutAHeaderIsNoStepLog) {
  EXPECT_EQ(refusal<IoError>(), "cannot open " + path_ + ": No such file or directory");
  for (const std::string text : {"", "{", "not one line"}) {
    write(text);
    EXPECT_EQ(refusal(), path_ + " holds no whole line of a step log");
  }
  write(digests_line(1) + "\n");
  EXPECT_EQ(refusal(), path_ + " does not begin with the header of a step log");
  write("Epoch 1: loss 2.5\n");
  EXPECT_EQ(refusal(), path_ + " line 1 is not JSON: error at byte 1");
  EXPECT_EQ(text_of<IoError>([&] { StepLogFile(host_files(), folder_.file("")); }),
            "cannot open " + folder_.file("") + ": not a regular file");
}

TEST_F(LogReader, ALogThatIsRewrittenMeanwhileIsNoticed) {
  write(kHeader + "\n" + digests_line(1) + "\n");
  const StepLogFile file(host_files(), path_);
  write(kHeader + "\n" + digests_line(3) + "\n");
  EXPECT_EQ(text_of<Corrupt>([&] { file.digests(file.steps().front()); }),
            path_ + " line 2 has changed while it was read");
}

TEST_F(LogReader, EveryCutGivesTheWholeLinesBeforeIt) {
  const std::string whole = kHeader + "\n" + digests_line(1) + "\n" + digests_line(2) + "\n";
  const std::size_t first = kHeader.size() + 1;
  const std::size_t second = first + digests_line(1).size() + 1;
  for (std::size_t size = first; size <= whole.size(); ++size) {
    write(whole.substr(0, size));
    const StepLogFile file(host_files(), path_);
    EXPECT_EQ(file.steps().size(), size < second ? 0U : size < whole.size() ? 1U : 2U) << size;
    EXPECT_EQ(file.unfinished_line().has_value(), whole[size - 1] != '\n') << size;
  }
}

TEST_F(LogReader, LinesOfAnyLengthAcrossReadsOfAnySize) {
  std::vector<std::string> lines;
  std::string text;
  for (const std::size_t length : {0U, 1U, 199U, 200U, 201U, 0U, 1U << 20, (1U << 20) + 1, 7U}) {
    lines.emplace_back(length, static_cast<char>('a' + lines.size()));
    text += lines.back() + "\n";
  }
  write(text + "rest");
  const FaultyFiles small;  // reads come in pieces of 200 bytes
  const auto host = host_files();
  for (const Files* files :
       {static_cast<const Files*>(&small), static_cast<const Files*>(&*host)}) {
    const File file = files->open(path_);
    LineReader reader(*files, file);
    std::uint64_t begin = 0;
    for (const std::string& line : lines) {
      ASSERT_EQ(reader.next(), line);
      EXPECT_EQ(reader.begin(), begin);
      begin += line.size() + 1;
    }
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.ends_within_line());
    LineReader from(*files, file, begin - 8);
    EXPECT_EQ(from.next(), lines.back());
    EXPECT_EQ(from.begin(), begin - 8);
  }
}

TEST(LogLine, KeepsTheOrderOfItsNames) {
  const auto line = parse_step_log_line(
      R"({"digests":{"z":"1","a":"2","m/x":"3"},"step":0,"kind":"digests"})", "l");
  EXPECT_THAT(line.digests, ElementsAre(Pair("z", "1"), Pair("a", "2"), Pair("m/x", "3")));
}

}  // namespace
}  // namespace tutti::test
