// Files that somebody made to do harm, or that something damaged.

#include <fstream>
#include <string>

#include <gmock/gmock.h>

#include "run/files/safetensors_reader.h"
#include "run/files/safetensors_writer.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

class Hostile : public ::testing::Test {
 protected:
  template <class Expected = Corrupt>
  std::string refusal_of(const std::string& bytes) const {
    const std::string path = folder_.file("x.safetensors");
    std::ofstream(path, std::ios::binary) << bytes;
    const std::string text =
        text_of<Expected>([&] { const SafetensorsFile file(host_files(), path); });
    return text.find(path) == std::string::npos ? "without path: " + text : text;
  }
  /// Of a file with this header and so many bytes of data.
  template <class Expected = Corrupt>
  std::string refusal(const std::string& header, std::size_t data = 0) const {
    return refusal_of<Expected>(length_bytes(header.size()) + header + std::string(data, 'x'));
  }
  /// Of a header that describes one tensor so, with 8 bytes of data.
  template <class Expected = Corrupt>
  std::string tensor(const std::string& members) const {
    return refusal<Expected>("{\"t\":{" + members + "}}", 8);
  }
  TemporaryFolder folder_;
};

std::string entry(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST_F(Hostile, GoodFilesArePassed) {
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"),
            "without path: nothing was thrown");
}

TEST_F(Hostile, Lengths) {
  for (std::size_t size = 0; size < 8; ++size)
    EXPECT_THAT(refusal_of(std::string(size, '\0')), HasSubstr("too few for safetensors"));
  EXPECT_THAT(refusal_of(length_bytes(100'000'001) + "{}"),
              HasSubstr("claims a header of 100000001 bytes; at most 100000000 are taken"));
  EXPECT_THAT(refusal_of(length_bytes(UINT64_MAX) + "{}"), HasSubstr("claims a header of 1844"));
  EXPECT_THAT(refusal_of(length_bytes(3) + "{}"), HasSubstr("cut in its header: it has 2 of 3"));
  EXPECT_THAT(refusal_of(length_bytes(100'000'000) + "{}"), HasSubstr("cut in its header"));
}

TEST_F(Hostile, HeadersThatAreNoJsonObject) {
  EXPECT_THAT(refusal(""), HasSubstr("does not begin with '{'"));
  for (const char* header : {"[]", " {}", "\xef\xbb\xbf{}", "null"})
    EXPECT_THAT(refusal(header), HasSubstr("does not begin with '{'"));
  for (const char* header :
       {"{", "{}}", "{}x", "{\"a\":}", "{\"__metadata__\":{},}", "{'a':1}", "{/**/}",
        "{\"\xff\":1}", "{\"\\ud800\":1}", "{\"a\nb\":1}", "{\"a\":NaN}"})
    EXPECT_THAT(refusal(header), HasSubstr("is not JSON: error at byte")) << header;
  EXPECT_THAT(refusal(std::string("{}\0{}", 5)), HasSubstr("it holds a zero byte"));
  EXPECT_THAT(refusal("{\"a\":1e999}"), HasSubstr("a number that is too large"));
}

TEST_F(Hostile, DeepAndLongHeaders) {
  EXPECT_THAT(refusal("{\"a\":" + std::string(1'000'000, '[')), HasSubstr("too deeply"));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1000; ++i) deep += "{\"a\":";
  EXPECT_THAT(refusal(deep), HasSubstr("too deeply"));
  std::string shape = "1";
  for (int i = 0; i < 100'000; ++i) shape += ",1";
  EXPECT_THAT(tensor("\"dtype\":\"U8\",\"shape\":[" + shape + "],\"data_offsets\":[0,8]"),
              HasSubstr("an array of more than 64 items"));
  const std::string text = refusal("{\"" + std::string(1'000'000, 'n') + "\":1}");
  EXPECT_THAT(text, HasSubstr("nnn…\" is not described by an object"));
  EXPECT_LT(text.size(), 400U) << "names of any length make short errors";
}

TEST_F(Hostile, DuplicateKeys) {
  EXPECT_THAT(refusal("{" + entry("a", 0, 4) + "," + entry("a", 4, 8) + "}", 8),
              HasSubstr("has \"a\" twice"));
  EXPECT_THAT(refusal("{" + entry("a", 0, 4) + "," + entry("\\u0061", 4, 8) + "}", 8),
              HasSubstr("has \"a\" twice"));
  EXPECT_THAT(tensor(R"("dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8])"),
              HasSubstr("has \"dtype\" twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":"1","a":"2"}})"), HasSubstr("has \"a\" twice"));
}

TEST_F(Hostile, TensorsWronglyDescribed) {
  const std::string type = R"("dtype":"F32",)", shape = R"("shape":[2],)",
                    offsets = R"("data_offsets":[0,8])";
  for (const char* value : {"1", "\"F32\"", "[]", "null"})
    EXPECT_THAT(refusal(std::string("{\"t\":") + value + "}"), HasSubstr("by an object"));
  EXPECT_THAT(tensor(shape + offsets), HasSubstr("tensor \"t\" has no dtype"));
  EXPECT_THAT(tensor(type + offsets), HasSubstr("tensor \"t\" has no shape"));
  EXPECT_THAT(tensor(type + R"("shape":[2])"), HasSubstr("tensor \"t\" has no data_offsets"));
  EXPECT_THAT(tensor(R"("dtype":7,)" + shape + offsets), HasSubstr("dtype of wrong kind"));
  EXPECT_THAT(tensor(type + R"("shape":2,)" + offsets), HasSubstr("shape of wrong kind"));
  EXPECT_THAT(tensor(type + shape + R"("data_offsets":8)"),
              HasSubstr("data_offsets of wrong kind"));
  for (const char* name : {"F8_E8M0", "U128", "f32", ""})
    EXPECT_THAT(tensor<Unsupported>(std::string("\"dtype\":\"") + name + "\"," + shape + offsets),
                HasSubstr(std::string("has dtype \"") + name + "\", which is not offered"));
  for (const char* bad : {"-2", "2.0", "\"2\"", "null", "true", "9223372036854775808", "1e3"}) {
    EXPECT_THAT(tensor(type + "\"shape\":[" + bad + "]," + offsets),
                HasSubstr("a length that is no size"));
    EXPECT_THAT(tensor(type + shape + "\"data_offsets\":[0," + bad + "]"),
                HasSubstr("an offset that is no size"));
  }
  EXPECT_THAT(tensor(type + shape + R"("data_offsets":[0,8,8])"), HasSubstr("has 3 data_offsets"));
  EXPECT_THAT(tensor(type + shape + offsets + R"(,"more":1)"), HasSubstr("has members besides"));
  EXPECT_THAT(tensor(type + shape + R"("data_offsets":[8,0])"),
              HasSubstr("ends at 0, before it begins at 8"));
}

TEST_F(Hostile, SizesThatDoNotFit) {
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
              HasSubstr("tensor \"t\" of F32 [3] has 8 bytes instead of 12"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
              HasSubstr("is too large: F32 [4294967296, 4294967296]"));
  EXPECT_THAT(tensor(R"("dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8])"),
              HasSubstr("is too large"))
      << "eight times that is 8 in 64 bits";
}

TEST_F(Hostile, OffsetsThatDoNotCoverTheData) {
  EXPECT_THAT(refusal("{" + entry("a", 0, 5) + "," + entry("b", 4, 8) + "}", 8),
              HasSubstr("tensor \"b\" overlaps the one before it"));
  EXPECT_THAT(refusal("{" + entry("b", 0, 8) + "," + entry("a", 0, 8) + "}", 8),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal("{" + entry("b", 5, 8) + "," + entry("a", 0, 3) + "}", 8),
              HasSubstr("2 bytes before tensor \"b\" belong to none"));
  EXPECT_THAT(refusal("{" + entry("a", 1, 8) + "}", 8), HasSubstr("1 bytes before tensor \"a\""));
  EXPECT_THAT(refusal("{" + entry("a", 0, 8) + "}", 7),
              HasSubstr("is cut: it has 7 of 8 bytes of data"));
  EXPECT_THAT(refusal("{" + entry("a", 0, 8) + "}", 10),
              HasSubstr("has 2 bytes after its last tensor"));
  EXPECT_THAT(refusal("{}", 1), HasSubstr("has 1 bytes after its last tensor"));
}

TEST_F(Hostile, Metadata) {
  EXPECT_THAT(refusal(R"({"__metadata__":[]})"), HasSubstr("__metadata__ that is not an object"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})"), HasSubstr("\"a\" that is no text"));
}

TEST_F(Hostile, FilesThatShrinkAfterwards) {
  const std::string path = folder_.file("y");
  const std::string header = "{" + entry("a", 0, 8) + "}";
  std::ofstream(path) << length_bytes(header.size()) << header << "12345678";
  const SafetensorsFile file(host_files(), path);
  std::ofstream(path) << length_bytes(header.size()) << header << "123";
  std::vector<std::byte> room(8);
  EXPECT_THAT(text_of<Corrupt>([&] { file.read(file.tensors()[0], room); }),
              AllOf(HasSubstr(path), HasSubstr("where 5 more were expected")));
}

}  // namespace
}  // namespace tutti::test
