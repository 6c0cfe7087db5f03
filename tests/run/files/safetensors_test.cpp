#include <algorithm>
#include <array>
#include <string>

#include <gmock/gmock.h>

#include "run/files/samples.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

constexpr std::array kAllTypes = {
    StoredType::F64,     StoredType::F32,     StoredType::F16, StoredType::BF16,
    StoredType::F8_E5M2, StoredType::F8_E4M3, StoredType::C64, StoredType::I64,
    StoredType::I32,     StoredType::I16,     StoredType::I8,  StoredType::U64,
    StoredType::U32,     StoredType::U16,     StoredType::U8,  StoredType::BOOL};

SafetensorsFile write_and_open(const SafetensorsContent& content, const TemporaryFolder& folder) {
  const auto files = host_files();
  const SafetensorsWriter writer(content);
  const FileDigest written = writer.write(*files, folder.file(""));
  EXPECT_EQ(written.bytes, writer.bytes());
  EXPECT_EQ(written, digest_of(*files, files->open(folder.file(content.name))));
  return {files, folder.file(content.name)};
}

void expect_same(const SafetensorsFile& file, const SafetensorsContent& content) {
  ASSERT_EQ(file.tensors().size(), content.tensors.size());
  EXPECT_EQ(file.metadata(), content.metadata);
  for (const TensorToWrite& wanted : content.tensors) {
    const TensorEntry* found = file.find(wanted.name);
    ASSERT_NE(found, nullptr) << wanted.name;
    EXPECT_EQ(found->type, wanted.type);
    EXPECT_EQ(found->shape, wanted.shape);
    EXPECT_EQ(found->offset % size_of(found->type), 0U) << "aligned to its elements";
    std::vector<std::byte> bytes(found->bytes);
    file.read(*found, bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), wanted.data.begin(), wanted.data.end()));
  }
}

TEST(Safetensors, AllTypesAndSizesComeBack) {
  const TemporaryFolder folder;
  Samples samples(5);
  SafetensorsContent content{.name = "t", .metadata = {{"a", "b"}, {"ü", "\"\n"}}};
  for (const StoredType type : kAllTypes)
    for (const std::int64_t length : {0, 1, 63, 64, 65})
      content.tensors.push_back(samples.tensor(
          std::string(name_of(type)) + " " + std::to_string(length), type, {length, 3}));
  expect_same(write_and_open(content, folder), content);
}

TEST(Safetensors, EmptyAndScalarTensorsComeBack) {
  const TemporaryFolder folder;
  Samples samples(6);
  const SafetensorsContent content{.name = "t",
                                   .tensors = {samples.tensor("empty", StoredType::F32, {0}),
                                               samples.tensor("one", StoredType::F32, {1}),
                                               samples.tensor("scalar", StoredType::BF16, {}),
                                               samples.tensor("hollow", StoredType::U8, {3, 0, 5}),
                                               samples.tensor("last", StoredType::F64, {0, 7})}};
  expect_same(write_and_open(content, folder), content);
  const SafetensorsContent none{.name = "none"};
  expect_same(write_and_open(none, folder), none);
  EXPECT_EQ(read_file(folder.file("none")), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST(Safetensors, OddNamesComeBack) {
  const TemporaryFolder folder;
  Samples samples(7);
  SafetensorsContent content{.name = "t"};
  for (const std::string name : {"", "\"", "\\", "a/b", "größe", "重み", "🎻", "a\nb", "\x01",
                                 "__metadata", "{}", " ", "\x7f"})
    content.tensors.push_back(samples.tensor(name, StoredType::I16, {2}));
  content.tensors.push_back(samples.tensor(std::string("a\0b", 3), StoredType::I16, {2}));
  expect_same(write_and_open(content, folder), content);
}

// A tensor longer than the pieces in which files are hashed and written.
TEST(Safetensors, LongTensorsComeBack) {
  const TemporaryFolder folder;
  Samples samples(8);
  const SafetensorsContent content{.name = "t",
                                   .tensors = {samples.tensor("x", StoredType::I8, {777'777}),
                                               samples.tensor("y", StoredType::F32, {262'145})}};
  expect_same(write_and_open(content, folder), content);
}

TEST(Safetensors, WideElementsComeFirstElseInTheOrderGiven) {
  const TemporaryFolder folder;
  Samples samples(9);
  const SafetensorsContent content{.name = "t",
                                   .tensors = {samples.tensor("z", StoredType::U8, {3}),
                                               samples.tensor("y", StoredType::F32, {3}),
                                               samples.tensor("x", StoredType::I32, {1}),
                                               samples.tensor("w", StoredType::F64, {1})}};
  const SafetensorsFile file = write_and_open(content, folder);
  std::string order;
  for (const TensorEntry& tensor : file.tensors()) order += tensor.name;
  EXPECT_EQ(order, "wyxz");
}

TEST(Safetensors, WhatReadersWouldRefuseIsNotWritten) {
  Samples samples(1);
  const TensorToWrite good = samples.tensor("a", StoredType::F32, {2});
  const auto refusal = [&](auto change) {
    SafetensorsContent content{.name = "file", .tensors = {good}};
    change(content);
    return text_of([&] { SafetensorsWriter writer(content); });
  };
  using Content = SafetensorsContent;
  EXPECT_EQ(refusal([&](Content& c) { c.tensors.push_back(good); }),
            "file: tensor \"a\" is given twice");
  EXPECT_THAT(refusal([](Content& c) { c.tensors[0].name = "__metadata__"; }),
              HasSubstr("a name that the format reserves"));
  EXPECT_THAT(refusal([](Content& c) { c.tensors[0].name = "\xc3"; }),
              HasSubstr("a name that is not UTF-8"));
  EXPECT_THAT(refusal([](Content& c) { c.metadata["a"] = "\xc3"; }),
              HasSubstr("metadata \"a\" is not UTF-8"));
  EXPECT_EQ(refusal([](Content& c) { c.tensors[0].shape = {3}; }),
            "file: tensor \"a\" of F32 [3] was given 8 bytes");
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{-1}, {std::int64_t{1} << 62, 4}, {std::int64_t{1} << 61}})
    EXPECT_THAT(refusal([&](Content& c) { c.tensors[0].shape = shape; }), HasSubstr("was given"));
}

TEST(Safetensors, RoomHasToFit) {
  const TemporaryFolder folder;
  Samples samples(1);
  const SafetensorsContent content{.name = "t",
                                   .tensors = {samples.tensor("a", StoredType::F32, {2, 3})}};
  const SafetensorsFile file = write_and_open(content, folder);
  std::vector<std::byte> room(23);
  EXPECT_THAT(text_of([&] { file.read(file.tensors()[0], room); }),
              HasSubstr("tensor \"a\" of F32 [2, 3] has 24 bytes, but room for 23 was given"));
  EXPECT_EQ(file.find("b"), nullptr);
}

TEST(StoredType, KnowsTheElementsOfTheCore) {
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                            DType::int32, DType::int64, DType::uint8, DType::boolean})
    EXPECT_EQ(size_of(stored_type(dtype)), size_of(dtype)) << name_of(dtype);
  EXPECT_EQ(name_of(stored_type(DType::bfloat16)), "BF16");
  EXPECT_EQ(name_of(stored_type(DType::float16)), "F16");
  EXPECT_EQ(name_of(stored_type(DType::int64)), "I64");
  for (const StoredType type : kAllTypes) EXPECT_EQ(stored_type(name_of(type)), type);
  EXPECT_FALSE(stored_type("F8_E8M0"));
}

}  // namespace
}  // namespace tutti::test
