// An error that one worker met is of the same class where another one throws it.

#include "base/error_kind.h"

#include <cerrno>
#include <new>

#include <gtest/gtest.h>

#include "tutti/error.h"

namespace tutti {
namespace {

/// What is thrown elsewhere for `error`, as a class and its text.
template <class Expected>
std::string sent(const std::exception& error, const std::exception_ptr& thrown) {
  ErrorKind kind;
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    kind = error_kind();
  }
  try {
    std::rethrow_exception(make_error(kind, std::string("elsewhere: ") + error.what()));
  } catch (const Expected& arrived) {
    return arrived.what();
  }
}

template <class Thrown, class Expected = Thrown>
std::string sent(const Thrown& error) {
  return sent<Expected>(error, std::make_exception_ptr(error));
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(ErrorKind, EachClassArrivesAsItself) {
  EXPECT_EQ(sent(InvalidArgument("a")), "elsewhere: a");
  EXPECT_EQ(sent(Unsupported("b")), "elsewhere: b");
  EXPECT_EQ(sent(Mismatch("c")), "elsewhere: c");
  EXPECT_EQ(sent(IoError(ENOSPC, "d")), "elsewhere: d");
  EXPECT_EQ(sent(OutOfMemory("e")), "elsewhere: e");
  EXPECT_EQ(sent(Corrupt("f")), "elsewhere: f");
  EXPECT_EQ(sent(Diverged("g")), "elsewhere: g");
}

// promise: error.h#code
TEST(ErrorKind, TheSystemsReasonComesAlong) {
  try {
    throw IoError(ENOSPC, "disk full");
  } catch (const Error&) {
    const auto kind = error_kind();
    try {
      std::rethrow_exception(make_error(kind, "disk full"));
    } catch (const IoError& error) {
      EXPECT_EQ(error.code(), ENOSPC);
    }
  }
}

TEST(ErrorKind, AFailedAllocationIsOutOfMemoryAndAProgramsOwnErrorInvalidArgument) {
  EXPECT_NE((sent<std::bad_alloc, OutOfMemory>(std::bad_alloc())), "");
  EXPECT_EQ((sent<std::runtime_error, InvalidArgument>(std::runtime_error("mine"))),
            "elsewhere: mine");
}

}  // namespace
}  // namespace tutti
