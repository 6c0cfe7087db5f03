#include "mpi/mpi_library.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr const char* kFile = "libtutti_mpi.so";

std::atomic<bool> stays_open{false};

std::vector<std::string> places() {
  std::vector<std::string> places;
  places.push_back(Environment::read().mpi_library);
  if (!places.back().empty()) return places;
  places.back() = kFile;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return places;
  const auto folder = program.parent_path();
  places.push_back((folder / kFile).string());
  places.push_back((folder / ".." / TUTTI_LIBRARY_FOLDER / kFile).lexically_normal().string());
  return places;
}

const MpiFunctions& load() {
  std::vector<std::string> problems;
  for (const auto& place : places()) {
    // Never closed: MPI has threads and handlers of its own.
    void* const library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      problems.emplace_back(::dlerror());
      continue;
    }
    const auto functions =
        reinterpret_cast<decltype(&tutti_mpi_functions)>(::dlsym(library, "tutti_mpi_functions"));
    if (functions == nullptr || functions()->version != MpiFunctions::kVersion) {
      problems.push_back(fmt::format("{} is not of this version of Tutti", place));
      continue;
    }
    return *functions();
  }
  throw Unsupported(fmt::format(
      "the library through which Tutti calls MPI cannot be loaded ({}): a build of Tutti makes it, "
      "as the target tutti_mpi, where it finds an MPI (Debian: libopenmpi-dev); link tutti::mpi, "
      "or set TUTTI_MPI_LIBRARY to its file",
      fmt::join(problems, "; ")));
}

}  // namespace

const MpiFunctions& mpi_functions() {
  static const MpiFunctions& functions = load();
  return functions;
}

std::string mpi_name() {
  std::array<char, 256> text{};
  mpi_functions().name(text.data(), text.size());
  return text.data();
}

std::string mpi_text(int code) {
  std::array<char, 512> text{};
  mpi_functions().text(code, text.data(), text.size());
  return text.data();
}

MpiPlace start_mpi() {
  const auto& mpi = mpi_functions();
  bool is_new = false;
  MpiPlace place;
  if (const int code = mpi.start(&is_new, &place.allows_threads); code != 0) {
    throw IoError(0, fmt::format("MPI cannot be initialised: {}", mpi_text(code)));
  }
  if (is_new) {
    std::atexit([] {
      if (!stays_open) mpi_functions().end();
    });
  }
  place.rank = mpi.rank();
  place.size = mpi.size();
  return place;
}

void leave_mpi_open() noexcept { stays_open = true; }

}  // namespace tutti
