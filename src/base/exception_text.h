#pragma once

// Threads: any. Failure: none.

#include <exception>
#include <string>

namespace tutti {

/// The text of the exception being handled, without the calls that libtorch's names.
inline std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from "));
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace tutti
