#include "apps/tutti/export/export.h"

#include <fmt/format.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/tutti/text/refusal.h"

namespace tutti::command {

void export_torch(const std::string& checkpoint, const std::string& file, bool averages) {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tutti-export-torch";
  std::array<const char*, 6> arguments{program.c_str(), checkpoint.c_str(), file.c_str()};
  if (averages) arguments[3] = "--averages";
  execv(program.c_str(), const_cast<char* const*>(arguments.data()));
  if (errno == ENOENT) {
    throw Refusal(
        kNotFoundStatus,
        fmt::format("{} is missing: it is a part of a build with libtorch", program.string()));
  }
  throw Refusal(kNotExecutableStatus,
                fmt::format("{}: {}", program.string(), std::strerror(errno)));
}

}  // namespace tutti::command
