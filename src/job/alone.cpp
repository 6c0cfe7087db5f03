#include "job/alone.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

void require_together(const JobState& job, std::string_view call, std::string_view group) {
  const auto where = job.alone_in();
  if (where.empty()) [[likely]]
    return;
  throw InvalidArgument(
      fmt::format("{} of group \"{}\" in {}: other workers are elsewhere at that time, and would "
                  "not come to it; call it between steps",
                  call, group, where));
}

}  // namespace tutti
