#pragma once

// With several workers each writes its own timeline, FILE.rank<R>; these become one FILE that a
// browser can show (chrome://tracing, ui.perfetto.dev).

#include <span>
#include <string>
#include <vector>

namespace tutti::command {

/// One JSON object whose "traceEvents" are those of all parts, in order. Throws Refusal when a part
/// is not such an object; the text says which, counted from 0.
std::string merge_timelines(std::span<const std::string> parts);

/// Name of rank's part.
std::string timeline_part(const std::string& file, int rank);

/// Removes what an earlier run may have left.
void remove_timeline_parts(const std::string& file, int workers);

/// Removes what an earlier attempt of this run has left: the parts, and what they became.
void remove_timeline(const std::string& file, int workers);

/// Merges the parts that exist into `file` and removes them; nothing happens when there are none.
/// Returns what went wrong, as lines; parts that cannot be read are left where they are.
std::vector<std::string> merge_timeline_files(const std::string& file, int workers);

}  // namespace tutti::command
