#pragma once

// A run's report of its steps, as JSON lines: for `tutti compare`, and to plot a loss.
//
//   {"format":"tutti step log","version":1,"steps":0,"facts":{"seed":"1",…}}
//   {"kind":"metrics","step":100,"applied":true,"loss":2.25,…,"metrics":{"tokens":8192.0}}
//   {"kind":"digests","step":100,"digests":{"0.weight":"<SHA-256>","0.weight/exp_avg":…}}
//
// A run that resumes from a checkpoint of step S appends a header with "steps":S: it takes back the
// lines of later steps that were written before it. JSON has no NaN and no infinities: numbers that
// are not finite are null. docs/diagnosis.md describes all members.
//
// Every line is one write, so a killed run leaves whole lines, and at most the last one unfinished.
// Lines are not brought to disk one by one: a power cut may take the last ones.
//
// Threads: one at a time. Processes: one writes (rank 0). Failure: that of Files, and
// InvalidArgument that names the file; a line that cannot be written whole is taken back, so that
// the log stays readable and may continue.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "run/files/run_fingerprint.h"
#include "tutti/metrics.h"

namespace tutti {

inline constexpr std::string_view kStepLogFormat = "tutti step log";
inline constexpr std::int64_t kStepLogVersion = 1;

/// Digests by name, in the run's order: "0.weight", "0.weight/exp_avg", "buffer:1.running_mean".
using NamedDigests = std::vector<std::pair<std::string, std::string>>;

/// The result of a step, in numbers.
struct StepFigures {
  bool applied = true;
  std::string dropped_because = {};  ///< where not applied
  /// Logical workers that had no part in it.
  std::vector<std::int64_t> dropped_locally = {};
  double loss = 0;
  double weight = 0;                         ///< Σ w
  std::optional<double> gradient_norm = {};  ///< before clipping
  double rate_factor = 1;                    ///< of the schedule
  double loss_scale = 1;
  Metrics metrics = {};
};

class StepLog {
 public:
  /// Logs a run of which `steps` are over; a load needs a new object. With 0 the file is truncated,
  /// else continued; it is made where it is missing, with the folders above it. A file that is no
  /// step log is refused.
  StepLog(std::shared_ptr<Files> files, const std::filesystem::path& path,
          const RunFingerprint& facts, std::int64_t steps);

  /// InvalidArgument for a file that cannot be one; changes nothing in what is there.
  static void check(Files& files, const std::filesystem::path& path);

  /// Writes at least one digest. Names differ and are not empty; each digest is 64 hexadecimal
  /// digits.
  void digests(std::int64_t step, const NamedDigests& digests);
  void metrics(std::int64_t step, const StepFigures& figures);

 private:
  void append(std::string line);

  std::shared_ptr<Files> files_;
  File file_;
};

}  // namespace tutti
