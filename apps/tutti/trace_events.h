#pragma once

// The events of a Chrome trace, one after another: a timeline of `tutti run --profile` may be
// larger than the memory.

#include <cstdint>
#include <functional>
#include <string>

namespace tutti::command {

/// A complete event ("ph":"X").
struct TraceEvent {
  std::string name;
  std::int64_t process = 0;  ///< of a timeline of Tutti: the worker's rank in the job
  std::int64_t thread = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// Calls `take` with every complete event of `file`, in the order of the file. IoError where it
/// cannot be read, Corrupt for what is not JSON, not a trace, or an event that is not complete.
void each_trace_event(const std::string& file, const std::function<void(const TraceEvent&)>& take);

}  // namespace tutti::command
