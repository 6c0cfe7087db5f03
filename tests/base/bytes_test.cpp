#include "base/bytes.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using namespace tutti;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Bytes, AreReadAsTheyWereWritten) {
  std::vector<std::byte> bytes;
  append(bytes, std::uint8_t{7});
  append(bytes, -1.5);
  append_all(bytes, std::vector<std::int16_t>{-2, 3});
  append_all(bytes, std::string("tâche"));
  ByteReader reader{bytes};
  EXPECT_EQ(reader.value<std::uint8_t>(), 7);
  EXPECT_EQ(reader.value<double>(), -1.5);
  EXPECT_EQ(reader.value<std::int16_t>(), -2);
  EXPECT_EQ(reader.value<std::int16_t>(), 3);
  EXPECT_EQ(text_of(reader.bytes(6)), "tâche");
  EXPECT_TRUE(reader.left.empty());
}

TEST(Bytes, OfAStringAreThoseOfAVector) {
  std::string text;
  append(text, std::uint32_t{0x01020304});
  append_all(text, std::vector<std::uint8_t>{});
  EXPECT_EQ(text, std::string("\4\3\2\1"));
}

TEST(Bytes, ThatAreNotThereAreAnError) {
  const std::vector<std::byte> bytes(5);
  ByteReader reader{bytes};
  reader.value<std::uint16_t>();
  EXPECT_THAT([&] { reader.value<std::uint32_t>(); },
              ThrowsMessage<InternalError>(HasSubstr("4 bytes are read where 3 are left")));
  EXPECT_EQ(reader.left.size(), 3U);
  EXPECT_THROW(reader.bytes(SIZE_MAX), InternalError);
}

}  // namespace
