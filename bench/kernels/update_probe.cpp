// Compiled for all that this machine has: a bound, not a rival.

#include "kernels/update_probe.h"

#include <utility>

namespace {

template <std::size_t... k>
void touch(const float* const* nodes, float* __restrict a, float* __restrict b, float* __restrict c,
           std::size_t count, std::index_sequence<k...>) {
  const float* const n[] = {nodes[k]...};
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = (n[k][i] + ...);
    a[i] += sum;
    b[i] += sum;
    c[i] += sum;
  }
}

}  // namespace

void touch_streams(std::span<const float* const> nodes, float* a, float* b, float* c,
                   std::size_t count) {
  if (nodes.size() == 2) touch(nodes.data(), a, b, c, count, std::make_index_sequence<2>());
  if (nodes.size() == 4) touch(nodes.data(), a, b, c, count, std::make_index_sequence<4>());
  if (nodes.size() == 8) touch(nodes.data(), a, b, c, count, std::make_index_sequence<8>());
}
