#pragma once

// With several workers each writes its own timeline, FILE.rank<R>; these become one FILE that a
// browser can show (chrome://tracing, ui.perfetto.dev). Events are copied as text, a piece at a
// time: timelines may be larger than the memory.

#include <functional>
#include <string>
#include <vector>

namespace tutti::command {

/// Name of rank's part.
std::string timeline_part(const std::string& file, int rank);

/// Removes what an earlier run, or an attempt of this one, has left: the parts, and what they
/// became.
void remove_timeline(const std::string& file, int workers);

/// Merges the parts that exist into `file` and removes them; nothing happens when there are none.
/// Returns what went wrong, as lines; parts that are not complete are left where they are, and so
/// are all when `stop`, which is called periodically, returns true.
std::vector<std::string> merge_timeline_files(
    const std::string& file, int workers, const std::function<bool()>& stop = [] { return false; });

}  // namespace tutti::command
