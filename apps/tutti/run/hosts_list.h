#pragma once

// The hosts that `--hosts` names.
//
// Threads: pure functions. Failure: Refusal with the usage status.

#include <string>
#include <vector>

namespace tutti::command {

struct HostEntry {
  std::string name;
  int workers = 0;
  int first_rank = 0;

  bool is_here() const { return name == "localhost"; }
  /// Ascending.
  std::vector<int> ranks() const;
};

/// "a:2,b:2", "[::1]:1". A host may stand there several times, and is several hosts then.
std::vector<HostEntry> parse_hosts(const std::string& text);

int workers_of(const std::vector<HostEntry>& hosts);

}  // namespace tutti::command
