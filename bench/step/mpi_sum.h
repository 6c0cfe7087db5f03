#pragma once

// The four calls of MPI that an average of gradients takes, away from libtorch's headers: one
// object for each MPI.

#include <cstdint>

namespace bench {

/// MPI_Init() and MPI_Finalize().
class Mpi {
 public:
  Mpi();
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// In place, over all processes. Collective.
  void sum(float* data, std::int64_t count) const;

 private:
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace bench
