// Which engine a process has for its links, and whether those of a group agree.

#include "comm/link/link_engine.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
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
  set_link_engine({});
  ::setenv("TUTTI_LINK", "auto", 1);
  EXPECT_EQ(link_engine().name, "tcp");
  EXPECT_EQ(link_engine().reason, "TUTTI_LINK is auto, and this program has no Gloo");
  ::setenv("TUTTI_LINK", "tcp", 1);
  EXPECT_EQ(link_engine().name, "tcp");
  EXPECT_EQ(link_engine().reason, "TUTTI_LINK is tcp");
  ::unsetenv("TUTTI_LINK");
}

// promise: link.h#use_link
TEST(LinkEngine, OfAllWorkersIsOne) {
  const std::vector<int> ranks{4, 5, 6};
  EXPECT_NO_THROW(require_one_engine(std::vector<std::string>{"a", "a", "a"}, ranks));
  for (const auto& names :
       std::vector<std::vector<std::string>>{{"a", "b", "a"}, {"a", "a", "b"}}) {
    try {
      require_one_engine(names, ranks);
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      EXPECT_EQ(error.what(),
                fmt::format("links between hosts are made by different engines: rank 4 has a, rank "
                            "{} has b (TUTTI_LINK, tutti::use_link())",
                            names[1] == "b" ? 5 : 6));
    }
  }
}

}  // namespace
}  // namespace tutti::test
