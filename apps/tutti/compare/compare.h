#pragma once

// `tutti compare`: where two runs begin to differ, by their step logs or by a checkpoint of each.

#include <string>

namespace tutti::command {

/// Exit statuses as of diff: equal, different, cannot be compared.
inline constexpr int kEqualStatus = 0;
inline constexpr int kDifferentStatus = 1;
inline constexpr int kNotComparableStatus = 2;

/// Prints what differs and returns the exit status.
int compare(const std::string& a, const std::string& b);

}  // namespace tutti::command
