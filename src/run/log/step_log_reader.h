#pragma once

// Reads a step log (step_log.h) of any size: every line is checked once, where the digests lie is
// kept, and they are read again where they are asked for.
//
// Threads: reading from several at once is fine. Failure: that of Files, and Corrupt that
// names file and line; Unsupported for another version.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/files.h"
#include "run/files/run_fingerprint.h"
#include "run/log/step_log.h"

namespace tutti {

/// The place of a step's digests in the file.
struct LoggedStep {
  std::int64_t step = 0;
  std::uint64_t offset = 0;  ///< of its line in the file
  std::uint64_t line = 0;    ///< the line's number, counted from 1
  std::uint64_t hash = 0;    ///< of the line: where two are equal, so are the digests
};

class StepLogFile {
 public:
  /// Takes what is there now; a file that is being written may be read.
  StepLogFile(std::shared_ptr<const Files> files, const std::filesystem::path& path);

  /// The facts that the last run shares with its checkpoints.
  const RunFingerprint& facts() const noexcept { return facts_; }
  /// Steps with digests, ascending. A line takes back all that was written before it about its step
  /// and later ones, and a header what was written about steps after those that were over.
  const std::vector<LoggedStep>& steps() const noexcept { return steps_; }
  /// The digests of a step, in the order in which they were written.
  NamedDigests digests(const LoggedStep& step) const;
  /// Number of the line within which the file ends: a killed run leaves that. It is passed over.
  std::optional<std::uint64_t> unfinished_line() const noexcept { return unfinished_line_; }

 private:
  void take_back(std::int64_t step);

  std::shared_ptr<const Files> files_;
  File file_;
  RunFingerprint facts_;
  std::vector<LoggedStep> steps_;
  std::optional<std::uint64_t> unfinished_line_;
};

}  // namespace tutti
