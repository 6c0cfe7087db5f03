#pragma once

// What a worker tells of the one that made it fail.
//
// Threads: plain data.

#include <string>

namespace tutti {

/// One worker told that it failed because of another.
struct Blame {
  int rank;
  int culprit;
  std::string text;
};

}  // namespace tutti
