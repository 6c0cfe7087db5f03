#include "tutti/share.h"

#include <gmock/gmock.h>

#include "tutti/error.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// promise: share.h#share_of
TEST(ShareOf, IsEvenWithTheLongerSharesFirst) {
  EXPECT_EQ(share_of(10, 0, 4), std::pair(std::int64_t{0}, std::int64_t{3}));
  EXPECT_EQ(share_of(10, 1, 4), std::pair(std::int64_t{3}, std::int64_t{6}));
  EXPECT_EQ(share_of(10, 2, 4), std::pair(std::int64_t{6}, std::int64_t{8}));
  EXPECT_EQ(share_of(10, 3, 4), std::pair(std::int64_t{8}, std::int64_t{10}));
  EXPECT_EQ(share_of(1, 2, 3), std::pair(std::int64_t{1}, std::int64_t{1}));
}

// promise: share.h#share_of
TEST(ShareOf, WhatMakesNoSenseIsRefused) {
  EXPECT_THAT([] { share_of(4, 2, 2); }, ThrowsMessage<InvalidArgument>(HasSubstr("part 2 of 2")));
  EXPECT_THAT([] { share_of(4, -1, 2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("part -1 of 2")));
  EXPECT_THAT([] { share_of(4, 0, 0); }, ThrowsMessage<InvalidArgument>(HasSubstr("part 0 of 0")));
  EXPECT_THAT([] { share_of(-4, 0, 2); }, ThrowsMessage<InvalidArgument>(HasSubstr("-4 items")));
}

}  // namespace
}  // namespace tutti
