#pragma once

// Facts that define a run, such as shards, seed and plan, as texts that are only compared.
//
// Threads: pure functions. Failure: none.

#include <map>
#include <string>

namespace tutti {

using RunFingerprint = std::map<std::string, std::string>;

/// The names of the two sides in a difference.
struct FactsSides {
  const char* first = "in the checkpoint";
  const char* second = "here";
};

/// The differences of facts, one a line, without a newline at the end: "shards is 8 in the
/// checkpoint, 4 here". At most five lines, then "… and 3 more". Empty if nothing differs.
std::string facts_diff(const RunFingerprint& first, const RunFingerprint& second,
                       const FactsSides& sides = {});

}  // namespace tutti
