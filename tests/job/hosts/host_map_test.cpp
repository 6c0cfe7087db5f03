#include "job/hosts/host_map.h"
#include "job/ranks_and_deadlines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/text_of.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

HostMap map_of(const std::vector<RankSet>& ranks) { return HostMap::of(ranks); }

TEST(HostMap, TellsWhoSharesMemory) {
  const auto map = map_of({{0, 2}, {1, 3, 4}});
  EXPECT_EQ(map.size(), 5);
  EXPECT_EQ(map.hosts(), 2);
  EXPECT_EQ(map.host_of(3), 1);
  EXPECT_EQ(map.neighbours(4), (RankSet{1, 3, 4}));
  EXPECT_FALSE(map.spans_hosts({1, 4}));
  EXPECT_TRUE(map.spans_hosts({1, 2}));
  EXPECT_FALSE(map.spans_hosts({}));
  const auto back = HostMap::read(map.bytes());
  EXPECT_EQ(back.hosts(), 2);
  EXPECT_EQ(back.ranks_of(0), (RankSet{0, 2}));
}

// promise: clusters#several-hosts, limits.h#kMaxWorkers
TEST(HostMap, HasUpTo1024WorkersAnd64OnAHost) {
  for (const auto& [hosts, each] : {std::pair{16, 64}, {1024, 1}, {2, 40}, {13, 5}}) {
    const auto map = HostMap::read(map_of(even(hosts, each)).bytes());
    EXPECT_EQ(map.size(), hosts * each);
    EXPECT_EQ(map.host_of(hosts * each - 1), hosts - 1);
    EXPECT_EQ(map.neighbours(hosts * each - 1).size(), each);
  }
  EXPECT_EQ(text_of([] { map_of(even(2, 65)); }), "host 0 has 65 workers: must be 1 to 64");
}

TEST(HostMap, RefusesWhatIsNoMap) {
  EXPECT_THAT(text_of([] { map_of({{0, 1}, {1, 2}}); }), HasSubstr("rank 1 is on two hosts"));
  EXPECT_THAT(text_of([] { map_of({{0, 1}, {3}}); }), HasSubstr("lack rank 2"));
  EXPECT_THAT(text_of([] { map_of({{1}, {0}}); }), HasSubstr("rank 0 is not on the first host"));
  EXPECT_THAT(text_of([] { map_of({{0}, {}}); }), HasSubstr("a host without a worker"));
}

}  // namespace
}  // namespace tutti::test
