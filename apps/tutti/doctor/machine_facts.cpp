#include "apps/tutti/doctor/machine_facts.h"

#include <poll.h>
#include <sys/utsname.h>
#include <filesystem>
#include <fstream>

#include "apps/tutti/run/processor_set.h"
#include "base/limits.h"
#include "kernels/fold.h"
#include "mpi/mpi_library.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<long> free_huge_pages() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    long value = 0;
    if (name == "HugePages_Free:" && file >> value) return value;
    file.ignore(1000, '\n');
  }
  return {};
}

std::string kernel_version() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "";
}

// Creates, seals, maps and writes as an arena does.
std::string try_sealed_memory(System& system) {
  constexpr std::size_t kBytes = 4096;
  try {
    const FileDescriptor file = system.create_memory("doctor", kBytes);
    const auto memory = system.map(file, kBytes);
    *memory = std::byte{1};
    return *system.map(file, kBytes) == std::byte{1} ? "" : "two mappings do not share memory";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string try_life_line(System& system) {
  try {
    const FileDescriptor line = system.life_line();
    pollfd polled{line.get(), POLLIN, 0};
    return poll(&polled, 1, 0) == 0 ? "" : "a live process counts as ended";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

std::string chosen(const std::string& choices) {
  const std::size_t open = choices.find('[');
  const std::size_t close = choices.find(']', open);
  if (close == std::string::npos) return choices;
  return choices.substr(open + 1, close - open - 1);
}

MachineFacts gather_facts(System& system) {
  MachineFacts facts;
#ifdef TUTTI_HAS_GLOO
  facts.has_gloo = true;
#endif
  try {
    facts.mpi = mpi_name();
  } catch (const Unsupported& error) {
    facts.mpi_problem = error.what();
  }
  facts.version = TUTTI_VERSION;
#ifdef TUTTI_TORCH_VERSION
  facts.torch = TUTTI_TORCH_VERSION;
#endif
  facts.kernel = kernel_version();
  facts.processors_present = present_processors();
  facts.processors_allowed = static_cast<int>(system.allowed_processors().size());
  facts.processor_quota = read_processor_quota("/");
  facts.processors = system.processors();
  facts.memory = system.memory_bounds();
  facts.huge_pages_shared = chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  facts.huge_pages_free = free_huge_pages();
  facts.simd = simd_target();
  facts.processor = read_processor();
  facts.libraries = Environment::read().libraries;
  facts.gpu_driver = read_gpu_driver();
  facts.gpus_on_bus = gpus_on_bus();
  facts.sealed_memory_problem = try_sealed_memory(system);
  facts.life_line_problem = try_life_line(system);
  return facts;
}

}  // namespace tutti::command
