// MPI_Allreduce in place, as mpirun starts it.

#include <mpi.h>

#include <vector>

#include "all_reduce/serve.h"

int main(int count, char** arguments) {
  if (count != 2) bench::fail("usage: mpi SOCKET");
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<float> data;
  bench::serve(arguments[1], rank, size, [&](const std::string&, std::int64_t elements) {
    if (data.size() < static_cast<std::size_t>(elements)) data.resize(elements);
    return bench::Operation{data.data(), [&data, n = static_cast<int>(elements)] {
                              MPI_Allreduce(MPI_IN_PLACE, data.data(), n, MPI_FLOAT, MPI_SUM,
                                            MPI_COMM_WORLD);
                            }};
  });
  MPI_Finalize();
}
