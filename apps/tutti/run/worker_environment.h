#pragma once

// The environment that `tutti run` gives a worker (docs/environment.md).

#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_level.h"

namespace tutti::command {

struct WorkerEnvironment {
  int rank = 0;
  int size = 1;
  int threads = 1;
  int restart = 0;
  int rendezvous_fd = -1;
  std::string hosts = {};          ///< workers on each host, "2,3"; empty: there is one
  std::string run;                 ///< the same in all attempts
  std::string deadline;            ///< seconds; empty: as inherited
  std::string profile;             ///< absolute path; empty: as inherited
  LibrarySettings libraries = {};  ///< others are as inherited
  // Of several hosts; empty: as inherited.
  std::string hub = {};        ///< "address:port"
  std::string interface = {};  ///< of this host
  std::string link = {};
  std::string lanes = {};
};

/// `inherited` ("NAME=value" each) with this worker's variables in place of those it held.
std::vector<std::string> environment_of(const WorkerEnvironment& worker,
                                        const std::vector<std::string>& inherited);

/// This process's environment.
std::vector<std::string> process_environment();

}  // namespace tutti::command
