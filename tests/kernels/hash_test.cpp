#include "kernels/hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/check.h"

namespace tutti {
namespace {

// Reference values of XXH3 (xxHash 0.8 specification): hashes are compared between builds.
TEST(Digest, IsXxh3) {
  EXPECT_EQ(digest(""), 0x2D06800538D394C2U);
  EXPECT_EQ(digest("abc"), 0x78AF5F94892F3950U);
}

TEST(Digest, SeesEveryByteItsPlaceAndTheSeed) {
  std::vector<unsigned char> data(300);
  std::set<std::uint64_t> seen{digest(data.data(), data.size())};
  for (unsigned char& byte : data) {
    byte = 1;
    EXPECT_TRUE(seen.insert(digest(data.data(), data.size())).second);
    byte = 0;
  }
  for (const std::uint64_t seed : {1, 2}) {
    EXPECT_TRUE(seen.insert(digest(data.data(), data.size(), seed)).second);
  }
  EXPECT_TRUE(seen.insert(digest(data.data(), data.size() - 1)).second);
}

// FIPS 180-2, appendix B.
TEST(Sha256, IsTheStandard) {
  Sha256 abc;
  abc.update("abc", 3);
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 million;
  const std::string part(1000, 'a');
  for (int i = 0; i < 1000; ++i) million.update(part.data(), part.size());
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, EndsWithHex) {
  Sha256 hash;
  hash.hex();
  EXPECT_THAT([&] { hash.update("x", 1); },
              testing::ThrowsMessage<InternalError>(testing::HasSubstr("SHA-256 after its end")));
  EXPECT_THAT([&] { hash.hex(); },
              testing::ThrowsMessage<InternalError>(testing::HasSubstr("SHA-256 after its end")));
}

}  // namespace
}  // namespace tutti
