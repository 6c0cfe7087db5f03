#include "job/alone.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

void require_together(const JobState& job, std::string_view call, std::string_view group) {
  if (job.alone_in().empty()) [[likely]]
    return;
  require_together(job, fmt::format("{} of group \"{}\"", call, group));
}

void require_together(const JobState& job, std::string_view call) {
  const auto where = job.alone_in();
  if (where.empty()) return;
  throw InvalidArgument(
      fmt::format("{} in {}: other workers are elsewhere at that time, and would not come to it; "
                  "call it between steps",
                  call, where));
}

void require_step_together(const JobState& job, std::string_view name) {
  if (job.alone_in().empty()) [[likely]]
    return;
  require_together(job, fmt::format("a step of \"{}\"", name));
}

}  // namespace tutti
