// Which of the errors a program may catch as one.

#include "tutti/error.h"

#include <type_traits>

#include <gtest/gtest.h>

#include "base/check.h"

namespace tutti {
namespace {

template <class... Errors>
constexpr bool kAreErrors = (std::is_base_of_v<Error, Errors> && ...);

// A handler of one of them gets none of the others.
template <class... Errors>
constexpr int kAncestors =
    ((std::is_base_of_v<PeerLost, Errors> + std::is_base_of_v<InvalidArgument, Errors> +
      std::is_base_of_v<Mismatch, Errors> + std::is_base_of_v<Timeout, Errors> +
      std::is_base_of_v<PeerFailed, Errors> + std::is_base_of_v<Unsupported, Errors> +
      std::is_base_of_v<IoError, Errors> + std::is_base_of_v<OutOfMemory, Errors> +
      std::is_base_of_v<Corrupt, Errors> + std::is_base_of_v<Diverged, Errors>)+...);

// promise: error.h#Error, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(Errors, AllDeriveFromOneAndAreApart) {
  EXPECT_TRUE((kAreErrors<InvalidArgument, Unsupported, IoError, OutOfMemory, Corrupt, Diverged,
                          Mismatch, Timeout, PeerLost, PeerFailed>));
  EXPECT_EQ((kAncestors<InvalidArgument, Unsupported, IoError, OutOfMemory, Corrupt, Diverged,
                        Mismatch, Timeout, PeerLost, PeerFailed>),
            10);
  EXPECT_FALSE((std::is_base_of_v<Error, InternalError>));
}

// promise: error.h#code, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(Errors, OfTheSystemHasItsReason) { EXPECT_EQ(IoError(13, "denied").code(), 13); }

// promise: error.h#rank, error.h#step
TEST(Errors, OfPeersSayWhoAndWhen) {
  EXPECT_EQ(PeerLost(3, "gone").rank(), 3);
  const PeerFailed failed(2, 17, "no data");
  EXPECT_EQ(failed.rank(), 2);
  EXPECT_EQ(failed.step(), 17);
  EXPECT_STREQ(failed.what(), "no data");
}

}  // namespace
}  // namespace tutti
