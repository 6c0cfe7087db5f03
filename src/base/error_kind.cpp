#include "base/error_kind.h"

#include <new>

#include "tutti/error.h"

namespace tutti {

ErrorKind error_kind() {
  try {
    throw;
  } catch (const Unsupported&) {
    return {ErrorClass::unsupported};
  } catch (const Mismatch&) {
    return {ErrorClass::mismatch};
  } catch (const IoError& error) {
    return {ErrorClass::io_error, error.code()};
  } catch (const OutOfMemory&) {
    return {ErrorClass::out_of_memory};
  } catch (const std::bad_alloc&) {
    return {ErrorClass::out_of_memory};
  } catch (const Corrupt&) {
    return {ErrorClass::corrupt};
  } catch (const Diverged&) {
    return {ErrorClass::diverged};
  } catch (...) {
    return {ErrorClass::invalid_argument};
  }
}

std::string exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from "));
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::exception_ptr make_error(ErrorKind kind, const std::string& text) {
  switch (kind.which) {
    case ErrorClass::unsupported:
      return std::make_exception_ptr(Unsupported(text));
    case ErrorClass::mismatch:
      return std::make_exception_ptr(Mismatch(text));
    case ErrorClass::io_error:
      return std::make_exception_ptr(IoError(kind.code, text));
    case ErrorClass::out_of_memory:
      return std::make_exception_ptr(OutOfMemory(text));
    case ErrorClass::corrupt:
      return std::make_exception_ptr(Corrupt(text));
    case ErrorClass::diverged:
      return std::make_exception_ptr(Diverged(text));
    case ErrorClass::invalid_argument:
      break;
  }
  return std::make_exception_ptr(InvalidArgument(text));
}

}  // namespace tutti
