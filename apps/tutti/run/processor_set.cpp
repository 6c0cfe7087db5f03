#include "apps/tutti/run/processor_set.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <climits>

#include "apps/tutti/text/refusal.h"

namespace tutti::command {
namespace {

constexpr int kWordBits = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

int present_processors() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))); }

std::vector<unsigned long> processor_mask(std::span<const int> processors) {
  std::vector<unsigned long> mask;
  for (const int processor : processors) {
    const auto word = static_cast<std::size_t>(processor / kWordBits);
    if (mask.size() <= word) mask.resize(word + 1);
    mask[word] |= 1UL << (processor % kWordBits);
  }
  return mask;
}

std::vector<int> processors_of(int rank, int workers, int threads, std::span<const int> allowed) {
  const long needed = static_cast<long>(workers) * threads;
  if (needed > static_cast<long>(allowed.size()))
    throw Refusal(kUsageStatus,
                  fmt::format("--bind core: {} workers of {} thread{} need {} processors, {} are "
                              "allowed",
                              workers, threads, threads == 1 ? "" : "s", needed, allowed.size()));
  const auto first = allowed.begin() + static_cast<std::ptrdiff_t>(rank) * threads;
  return {first, first + threads};
}

}  // namespace tutti::command
