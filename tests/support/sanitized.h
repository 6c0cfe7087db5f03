#pragma once

// What tests leave out under a sanitizer, where everything takes ten times as long: it looks for
// races and stray accesses, and other builds of the same tests have every case and size.

#include <vector>

namespace tutti::test {

#ifdef TUTTI_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline const std::vector<int> kNumbersOfWorkers =
    kSanitized ? std::vector<int>{2, 5} : std::vector<int>{1, 2, 3, 5, 8};

}  // namespace tutti::test
