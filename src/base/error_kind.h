#pragma once

// Errors that one worker met and all have to throw: the class as a number that other processes can
// read, and the error that it stands for.
//
// Threads: pure functions. Failure: none.

#include <cstdint>
#include <exception>
#include <string>

namespace tutti {

enum class ErrorClass : std::int32_t {
  invalid_argument,
  unsupported,
  mismatch,
  io_error,
  out_of_memory,
  corrupt,
  diverged
};

/// Trivially copyable, for shared memory.
struct ErrorKind {
  ErrorClass which = ErrorClass::invalid_argument;
  std::int32_t code = 0;  ///< IoError::code()
};

/// Inside a handler: the kind of the exception being handled. Failed allocations are out_of_memory;
/// what is none of the classes is invalid_argument, as the call that was given it.
ErrorKind error_kind();

/// Inside a handler: the text of the exception being handled, without the calls that libtorch's
/// names.
std::string exception_text();

/// The error of that kind.
std::exception_ptr make_error(ErrorKind kind, const std::string& text);

}  // namespace tutti
