#include "comm/gather_bytes.h"

#include <gtest/gtest.h>

#include "support/thread_ranks.h"

namespace tutti::test {
namespace {

TEST(GatherBytes, EachGivesALengthOfItsOwn) {
  run_thread_ranks(4, [](const Job& job) {
    const Group group(job);
    for (const std::size_t length : {0, 1, 1000}) {
      const auto of_rank = [&](int r) {
        return std::vector<std::byte>(length * static_cast<std::size_t>(r),
                                      static_cast<std::byte>(r));
      };
      const auto parts = gather_bytes(group, of_rank(group.rank()), {.label = "bytes"});
      ASSERT_EQ(parts.size(), 4u);
      for (int r = 0; r < 4; ++r) EXPECT_EQ(parts[static_cast<std::size_t>(r)], of_rank(r));
    }
  });
}

}  // namespace
}  // namespace tutti::test
