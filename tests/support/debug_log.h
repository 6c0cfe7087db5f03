#pragma once

// Lines of the level "debug" are logged for as long as it lives.
//
// Threads: one. Failure: none.

namespace tutti::test {

class DebugLog {
 public:
  DebugLog();
  ~DebugLog();
  DebugLog(const DebugLog&) = delete;
  DebugLog& operator=(const DebugLog&) = delete;
};

}  // namespace tutti::test
