#pragma once

// A refusal of the command, with its exit status. Thrown before any worker of an attempt runs.

#include <stdexcept>
#include <string>

namespace tutti::command {

inline constexpr int kUsageStatus = 2;            ///< wrong options
inline constexpr int kNotExecutableStatus = 126;  ///< as shells have it
inline constexpr int kNotFoundStatus = 127;
inline constexpr int kSignalStatus = 128;  ///< plus the signal's number

class Refusal : public std::runtime_error {
 public:
  Refusal(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

}  // namespace tutti::command
