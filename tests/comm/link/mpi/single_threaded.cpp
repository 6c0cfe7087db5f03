// An MPI that allows no several threads, for tests: what MPI says elsewhere is of the environment.

#include "mpi/mpi_functions.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace {

int variable(const char* name) { return std::atoi(std::getenv(name)); }

}  // namespace

const tutti::MpiFunctions* tutti_mpi_functions() {
  static const tutti::MpiFunctions functions = {
      .version = tutti::MpiFunctions::kVersion,
      .no_request = 0,
      .name =
          [](char* text, std::size_t size) {
            constexpr std::string_view kName = "An MPI of a test";
            text[kName.copy(text, size - 1)] = 0;
          },
      .text = nullptr,
      .start =
          [](bool* is_new, bool* allows_threads) {
            *is_new = *allows_threads = false;
            return 0;
          },
      .end = nullptr,
      .rank = [] { return variable("RANK"); },
      .size = [] { return variable("WORLD_SIZE"); },
      .make_communicator = nullptr,
      .send = nullptr,
      .receive = nullptr,
      .test = nullptr,
      .wait = nullptr,
      .cancel = nullptr,
  };
  return &functions;
}
