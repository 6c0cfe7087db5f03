#pragma once

// What defines a run: shards, seed, plan and the like, as texts that are only compared.
//
// Threads: pure functions. Failure: none.

#include <map>
#include <string>

namespace tutti {

using RunFingerprint = std::map<std::string, std::string>;

/// What a difference calls the two sides.
struct FactsSides {
  const char* first = "in the checkpoint";
  const char* second = "here";
};

/// Where facts differ, one difference a line, without a newline at the end:
/// "shards is 8 in the checkpoint, 4 here". At most five lines, then "… and 3 more". Empty if
/// nothing differs.
std::string facts_diff(const RunFingerprint& first, const RunFingerprint& second,
                       const FactsSides& sides = {});

}  // namespace tutti
