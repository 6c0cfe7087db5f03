#pragma once

// Keeps the lines that Tutti logs while this lives. Make it before the ranks start and let it go
// after they have ended: the logger's list of sinks is not guarded.

#include <memory>
#include <string>
#include <vector>

namespace tutti::test {

class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// "warning: text", "info: text", …, in order.
  std::vector<std::string> lines() const;
  /// Number of lines that contain `text`.
  int count(const std::string& text) const;

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace tutti::test
