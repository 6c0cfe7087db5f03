// Which engine a process has for its links, and whether those of a group agree.

#include "comm/link/link_engine.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tutti/error.h"

namespace tutti::test {
namespace {

TEST(LinkEngine, ThatIsSetIsTakenElseWhatIsAskedFor) {
  ::setenv("TUTTI_LINK", "mpi", 1);
  EXPECT_EQ(link_engine().name, "mpi");
  EXPECT_EQ(link_engine().reason, "TUTTI_LINK is mpi");
  set_link_engine({.name = "own"});
  EXPECT_EQ(link_engine().name, "own");
  set_link_engine({.name = "", .reason = "no headers"});
  ::setenv("TUTTI_LINK", "auto", 1);
  EXPECT_EQ(link_engine().name, "");
  EXPECT_EQ(link_engine().reason, "no headers");
  ::setenv("TUTTI_LINK", "hub", 1);
  EXPECT_EQ(link_engine().name, "");
  EXPECT_EQ(link_engine().reason, "TUTTI_LINK is hub");
  ::unsetenv("TUTTI_LINK");
  set_link_engine({});
}

// promise: link.h#use_link
TEST(LinkEngine, OfAllWorkersIsOneOrNone) {
  const auto without = [](const std::vector<std::string>& names) {
    return without_engine(names, std::vector<int>{4, 5, 6});
  };
  EXPECT_EQ(without({"a", "a", "a"}), std::nullopt);
  EXPECT_EQ(without({"a", "", ""}), 1);
  EXPECT_EQ(without({"", "a", "a"}), 0);
  for (const auto& names : std::vector<std::vector<std::string>>{{"a", "", "b"}, {"a", "a", "b"}}) {
    try {
      without(names);
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      EXPECT_STREQ(error.what(),
                   "links between hosts are made by different engines: rank 4 has a, rank 6 has b");
    }
  }
}

}  // namespace
}  // namespace tutti::test
