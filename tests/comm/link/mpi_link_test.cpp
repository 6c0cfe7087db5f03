// What of a link over MPI needs no MPI.

#include "comm/link/mpi_link.h"

#include <string>

#include <gmock/gmock.h>

#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MpiLink, RanksThatPeersGiveAreNumbersOrAnError) {
  EXPECT_THAT(mpi_ranks_of({"0", "12", "3"}), ElementsAre(0, 12, 3));
  for (const std::string text : {"", "seven", "7 or so", "-1", "99999999999"}) {
    EXPECT_THAT(
        [&] {
          mpi_ranks_of({"0", text});
        },
        ThrowsMessage<IoError>(HasSubstr("peer 1 gives \"" + text + "\" as its rank")));
  }
}

}  // namespace
}  // namespace tutti::test
