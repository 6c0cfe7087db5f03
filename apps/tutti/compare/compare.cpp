#include "apps/tutti/compare/compare.h"

#include <fmt/format.h>
#include <cerrno>
#include <exception>
#include <filesystem>

#include "apps/tutti/compare/comparison.h"
#include "apps/tutti/text/say.h"
#include "base/files.h"
#include "run/files/manifest.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    throw IoError(ENOENT, fmt::format("there is no {}", path));
  if (error)
    throw IoError(error.value(), fmt::format("cannot look at {}: {}", path, error.message()));
  return fs::is_directory(status);
}

Checkpoint checkpoint_at(const std::string& path) {
  const auto files = host_files();
  if (!is_checkpoint_folder(*files, path))
    throw InvalidArgument(
        fmt::format("{} is no checkpoint: it has no {}. Of a folder of checkpoints, name one: "
                    "{}/step-…",
                    path, kManifestName, path));
  return open_checkpoint_folder(files, path);
}

Comparison compared(const std::string& a, const std::string& b) {
  const bool folders = is_folder(a);
  if (folders != is_folder(b))
    throw InvalidArgument(
        fmt::format("{} is a folder, {} is a file: give two step logs or two checkpoints",
                    folders ? a : b, folders ? b : a));
  if (folders) return compare_checkpoints(checkpoint_at(a), checkpoint_at(b));
  return compare_logs(StepLogFile(host_files(), a), StepLogFile(host_files(), b));
}

}  // namespace

int compare(const std::string& a, const std::string& b) {
  try {
    const Comparison comparison = compared(a, b);
    fmt::print("{}", comparison.text);
    return comparison.equal ? kEqualStatus : kDifferentStatus;
  } catch (const std::exception& error) {  // whatever it is, it is no difference
    say(fmt::format("tutti compare: {}", error.what()));
    return kNotComparableStatus;
  }
}

}  // namespace tutti::command
