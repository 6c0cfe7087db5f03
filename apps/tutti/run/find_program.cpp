#include "apps/tutti/run/find_program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "apps/tutti/text/refusal.h"

namespace tutti::command {
namespace {

constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

bool is_folder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool executable(const std::string& path) {
  return !is_folder(path) && access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void refuse_existing(const std::string& path) {
  const char* reason = is_folder(path) ? "it is a folder" : "it is not an executable file";
  throw Refusal(kNotExecutableStatus, fmt::format("cannot run \"{}\": {}", path, reason));
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (executable(name)) return name;
    if (exists(name)) refuse_existing(name);
    throw Refusal(kNotFoundStatus,
                  fmt::format("cannot run \"{}\": {}", name, std::strerror(errno)));
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : kDefaultPath);
  std::string unusable;
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (executable(candidate)) return candidate;
    if (unusable.empty() && exists(candidate) && !is_folder(candidate)) unusable = candidate;
  }
  if (!unusable.empty()) refuse_existing(unusable);
  const std::string hint = executable(name) ? fmt::format("; did you mean ./{}?", name) : "";
  throw Refusal(kNotFoundStatus,
                fmt::format("cannot run \"{}\": no such program in PATH{}", name, hint));
}

}  // namespace tutti::command
