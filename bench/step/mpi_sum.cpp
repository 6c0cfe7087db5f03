#include "step/mpi_sum.h"

#include <mpi.h>

namespace bench {

Mpi::Mpi() {
  MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

Mpi::~Mpi() { MPI_Finalize(); }

void Mpi::sum(float* data, std::int64_t count) const {
  MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

}  // namespace bench
