#pragma once

// Invariants of Tutti itself. A user never has to catch InternalError: it is a bug to report.

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace tutti {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& text);

}  // namespace tutti

#define TUTTI_CHECK(condition, ...)                                                    \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::tutti::fail_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
