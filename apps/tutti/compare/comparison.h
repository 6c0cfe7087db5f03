#pragma once

// What comparing two runs found, as text. The two are called A and B.

#include <cstddef>
#include <string>
#include <vector>

#include "run/run_fingerprint.h"

namespace tutti::command {

struct Comparison {
  bool equal = false;
  std::string text;  ///< whole lines
};

/// Names as many differences as a person reads: "  …" lines, then how many more there are.
std::string as_list(const std::vector<std::string>& differences);

/// "facts: …" lines; empty where none differ. They explain a difference, and are none.
std::string facts_text(const RunFingerprint& a, const RunFingerprint& b);

/// A name from a file, as it may be printed on a terminal.
std::string quoted(const std::string& name);

/// "1 step", "2 steps"
std::string counted(std::size_t count, const std::string& noun);

}  // namespace tutti::command
