#pragma once

// Threads: any. Failure: none.

#include <exception>
#include <string>

namespace tutti {

/// The text of the exception being handled.
inline std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace tutti
