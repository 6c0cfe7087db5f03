#pragma once

// What comparing two runs found, as text. The two are called A and B.
//
// Failure: InvalidArgument where they cannot be compared.

#include <cstddef>
#include <string>
#include <vector>

#include "run/files/checkpoint_store.h"
#include "run/files/run_fingerprint.h"
#include "run/log/step_log_reader.h"

namespace tutti::command {

struct Comparison {
  bool equal = false;
  std::string text;  ///< whole lines
};

/// Two step logs, step by step (run/log/step_log.h): the steps of which both have digests, to the
/// first that differs.
Comparison compare_logs(const StepLogFile& a, const StepLogFile& b);

/// Two checkpoints, tensor by tensor and byte by byte. Takes twice the memory of the largest
/// tensor.
Comparison compare_checkpoints(const Checkpoint& a, const Checkpoint& b);

/// Names as many differences as a person reads: "  …" lines, then how many more there are.
std::string as_list(const std::vector<std::string>& differences);

/// "facts: …" lines; empty where none differ. They explain a difference, and are none.
std::string facts_text(const RunFingerprint& a, const RunFingerprint& b);

/// A name from a file, as it may be printed on a terminal.
std::string quoted(const std::string& name);

/// "1 step", "2 steps"
std::string counted(std::size_t count, const std::string& noun);

}  // namespace tutti::command
