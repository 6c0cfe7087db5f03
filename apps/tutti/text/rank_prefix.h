#pragma once

// "[3] ": who wrote a line. All prefixes of a run have the same width.

#include <string>
#include <vector>

namespace tutti::command {

/// "[ 3] " for rank 3 of 12. In colour, one of a few per rank, when asked for.
std::string rank_prefix(int rank, int size, bool colour);

/// "[0-3,5] " for what these ranks have written alike.
std::string ranks_prefix(const std::vector<int>& ascending);

/// Colours are for terminals whose user has not set NO_COLOR (https://no-color.org) and that can
/// show them (TERM is not "dumb").
bool wants_colour(bool is_terminal, const char* no_color, const char* term);

}  // namespace tutti::command
