#pragma once

// A checkpoint's model as a torch archive: nested by module, as torch::save writes it.
//
// Threads: one. Failure: InvalidArgument; c10::Error where the file cannot be written.

#include <filesystem>

namespace tutti::command {

struct ExportOptions {
  std::filesystem::path checkpoint;  ///< one, or a folder of them: the newest
  std::filesystem::path archive;     ///< replaced where it exists
  bool averages = false;             ///< the moving averages in place of the parameters
};

/// Returns the step of the checkpoint.
std::int64_t export_archive(const ExportOptions& options);

}  // namespace tutti::command
