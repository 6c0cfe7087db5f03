#pragma once

// Several hosts for ranks that are processes (support/process_ranks.h).

#include <cstdlib>
#include <string>

namespace tutti::test {

/// Ranks that are processes are on that many hosts while it lives.
class Spread {
 public:
  explicit Spread(int hosts) { ::setenv("TUTTI_TEST_HOSTS", std::to_string(hosts).c_str(), 1); }
  ~Spread() { ::unsetenv("TUTTI_TEST_HOSTS"); }
  Spread(const Spread&) = delete;
  Spread& operator=(const Spread&) = delete;
};

}  // namespace tutti::test
