#include "sync/averaging/int8_differences.h"

#include <cstring>

#include "kernels/fold.h"
#include "kernels/int8_blocks.h"
#include "sync/plan/tile_share.h"

namespace tutti {

void write_difference(std::byte* message, const float* copy, const float* before, float* residual,
                      std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) residual[i] = (copy[i] - before[i]) + residual[i];
  if (to_int8(message, residual, count) < 0) {
    subtract_int8(residual, message, count);
  } else {
    std::memset(message, 0xFF, int8_bytes(count));  // a scale of these bits is NaN
  }
}

void add_difference(float* values, const float* before, float* residual, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) residual[i] = values[i] = values[i] + residual[i];
  round_to_int8(values, count);
  for (std::int64_t i = 0; i < count; ++i) {
    residual[i] -= values[i];
    values[i] = before[i] + values[i];
  }
}

MeanOfMessages::MeanOfMessages(std::size_t replicas)
    : tree_(FoldProgram::canonical(static_cast<int>(replicas))),
      terms_(replicas, std::vector<float>(kTile)) {}

void MeanOfMessages::take(std::span<const std::byte* const> messages, std::int64_t begin,
                          std::int64_t count, float* to) {
  std::vector<const void*> sources;
  for (std::size_t r = 0; r < terms_.size(); ++r) {
    from_int8(terms_[r].data(), messages[r], begin, count);
    sources.push_back(terms_[r].data());
  }
  void* const destination = to;
  fold({.program = &tree_,
        .divisor = static_cast<double>(sources.size()),
        .sources = sources,
        .destinations = {&destination, 1},
        .count = count});
}

}  // namespace tutti
