#pragma once

// What Tutti calls of MPI, as a table of C functions. The binary interfaces of MPIs differ (a
// request is a pointer in Open MPI, a number in MPICH), so a library of its own, tutti_mpi, stands
// between: it is built against the MPI that was found, and loaded only when a link over MPI is
// asked for (mpi/mpi_library.h).
//
// Threads: any, once MPI allows several. Failure: a code other than 0, of which text() tells more.

#include <cstddef>
#include <cstdint>

namespace tutti {

struct MpiFunctions {
  using Request = std::uintptr_t;

  int version;         ///< kVersion of what the library was built with
  Request no_request;  ///< what a request is once it is complete

  /// "Open MPI v4.1.4"; before start() too.
  void (*name)(char* text, std::size_t size);
  void (*text)(int code, char* text, std::size_t size);

  /// MPI_Init_thread, unless the program has called MPI_Init; `is_new` tells which. Collective over
  /// all processes of MPI.
  int (*start)(bool* is_new, bool* allows_threads);
  /// MPI_Finalize, unless it was called.
  int (*end)();
  int (*rank)();  ///< among all processes of MPI
  int (*size)();

  /// A communicator of some processes, in this order. It is never freed.
  int (*make_communicator)(const int* ranks, int count, int tag, void** communicator);
  int (*send)(const void* bytes, int count, int peer, int tag, void* communicator, Request*);
  int (*receive)(void* bytes, int count, int peer, int tag, void* communicator, Request*);
  int (*test)(Request* requests, int count, bool* are_complete);
  int (*wait)(Request* request);
  int (*cancel)(Request* request);

  static constexpr int kVersion = 1;
};

}  // namespace tutti

/// What the library has for dlsym().
extern "C" const tutti::MpiFunctions* tutti_mpi_functions();
