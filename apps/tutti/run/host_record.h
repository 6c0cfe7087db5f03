#pragma once

// What the launcher of a host tells the one that has started it, as lines among its errors. No
// worker's line is like them: those have the prefix of a rank.
//
// Threads: pure functions. Failure: none.

#include <optional>
#include <string>

namespace tutti::command {

/// Where the hub listens; with a rank, who failed first on the host; that its workers, asked to
/// end, save what they have.
struct HostRecord {
  std::string address = {};
  int port = 0;
  int rank = -1;
  int status = 0;    ///< exit status of `tutti run` there
  int culprit = -1;  ///< the rank of another host that it blames; -1: none
  bool saves = false;
};

std::string text_of(const HostRecord& record);
std::optional<HostRecord> read_record(const std::string& line);

}  // namespace tutti::command
