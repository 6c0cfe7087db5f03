#pragma once

// Names and renames by which a folder of checkpoints survives a crash between any two effects.
// In DIR there are
//   step-00000200            a complete checkpoint
//   .step-00000200.part-PID  being written
//   .step-00000200.old       complete, out of the way of a newer one of the same step; counts as
//                            long as that is not in place
//   .step-00000200.gone      being removed
//   .lock                    held by who writes
//   .run                     the identity of the run that has saved last
//
// Threads: one at a time. Processes: one writes, who holds the lock. Failure: that of
// Files.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/files.h"

namespace tutti {

/// "step-00000200"
std::string name_of_step(std::int64_t step);

class CheckpointFolders {
 public:
  CheckpointFolders(Files& files, std::filesystem::path dir);

  /// Complete checkpoints and where they lie, by step.
  std::map<std::int64_t, std::filesystem::path> complete() const;

  /// The right to call what follows, as long as the file is open; DIR is made. InvalidArgument
  /// where another run has it.
  File lock();

  /// Puts away what a crash, or a publish that replaced something, has left. To be called before
  /// anything else that writes.
  void settle();
  /// Notes which run saves, before what it has written into `part` is published. Atomic; nothing is
  /// written where it is noted already.
  void note_run(const std::string& run, const std::filesystem::path& part);
  /// The run that was noted last; nothing where none was.
  std::optional<std::string> noted_run() const;
  /// A new empty folder to write the checkpoint of this step into.
  std::filesystem::path begin(std::int64_t step);
  /// Makes what was written into `part` the checkpoint of this step. An older one of this step goes
  /// out of the way, and comes back if this fails.
  void publish(std::int64_t step, const std::filesystem::path& part);
  /// Removes complete checkpoints.
  void remove(const std::map<std::int64_t, std::filesystem::path>& checkpoints);

 private:
  std::filesystem::path aside(std::int64_t step, const char* suffix) const;

  Files& files_;
  std::filesystem::path dir_;
};

}  // namespace tutti
