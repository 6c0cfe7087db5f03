#pragma once

// The text of the error that a call ends in; that of another class is passed on.

#include <string>

#include "tutti/error.h"

namespace tutti::test {

template <class Expected = InvalidArgument, class Call>
std::string text_of(Call call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tutti::test
