#pragma once

#include <string>

namespace tutti {

/// One worker told that it failed because of another.
struct Blame {
  int rank;
  int culprit;
  std::string text;
};

}  // namespace tutti
