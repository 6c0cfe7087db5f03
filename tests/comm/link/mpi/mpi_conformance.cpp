// The conformance suite over MPI, run by mpirun: each process is one peer and runs every test.

#include <mpi.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "comm/link/link_conformance.h"
#include "comm/link/link_conformance_failure.h"
#include "comm/link/mpi_link.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

class MpiWorld final : public LinkWorld {
 public:
  void run(int peers, int lanes, const Body& body) override {
    std::unique_ptr<Link> link;
    if (rank_of_world() < peers) {
      std::vector<int> ranks(peers);
      std::iota(ranks.begin(), ranks.end(), 0);
      link = make_mpi_link({.ranks = ranks,
                            .lanes = lanes,
                            .deadline = Deadline::after(Clock::now(), std::chrono::seconds(60))});
      body(link);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
};

INSTANTIATE_TEST_SUITE_P(Mpi, LinkConformance,
                         ::testing::Values(LinkWorldCase{
                             "Processes", [] { return std::make_unique<MpiWorld>(); }}),
                         name_of);

TEST(MpiLink, IsForTheRanksThatItNames) {
  const int rank = rank_of_world();
  try {
    make_mpi_link({.ranks = {(rank + 1) % 4, (rank + 2) % 4}});
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("is not among the peers"));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// What the other processes print.
class FailuresAlone final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << rank_of_world() << ": " << result.file_name() << ":"
              << result.line_number() << ": " << result.summary() << std::endl;
  }
};

}  // namespace
}  // namespace tutti::test

int main(int count, char** arguments) {
  int level = 0;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &level);
  testing::InitGoogleTest(&count, arguments);
  if (tutti::test::rank_of_world() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new tutti::test::FailuresAlone);
  }
  const int status = RUN_ALL_TESTS();
  MPI_Finalize();
  return status;
}
