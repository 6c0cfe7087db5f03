#pragma once

// The text of the InvalidArgument that a call ends in.

#include <string>

#include "tutti/error.h"

namespace tutti::test {

template <class Call>
std::string text_of(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tutti::test
