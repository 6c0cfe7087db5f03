// The same text for the host: g++ -O3 -mavx2 -ffp-contract=off -fno-math-errno -fno-trapping-math
// (no -mfma: nothing to contract with).
#include "facts_fold.h"

namespace {
template <int N>
void sweep(const Sources& all, float divisor, const Adam& by, float* __restrict p,
           float* __restrict m, float* __restrict v, std::int64_t begin, std::int64_t end) {
  const bool divides = divisor != 1;
  const float* node[8];
  for (int k = 0; k < N; ++k) node[k] = all.node[k];
  const Adam rule = by;
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i)
    adam_at(tree<N>(node, i), divisor, divides, rule, p[i], m[i], v[i]);
}
}  // namespace

extern "C" bool host_fold_adam(int n, const Sources* s, float divisor, const Adam* by, float* p,
                               float* m, float* v, std::int64_t begin, std::int64_t end) {
  switch (n) {
    case 1:
      sweep<1>(*s, divisor, *by, p, m, v, begin, end);
      return true;
    case 2:
      sweep<2>(*s, divisor, *by, p, m, v, begin, end);
      return true;
    case 3:
      sweep<3>(*s, divisor, *by, p, m, v, begin, end);
      return true;
    case 4:
      sweep<4>(*s, divisor, *by, p, m, v, begin, end);
      return true;
    case 8:
      sweep<8>(*s, divisor, *by, p, m, v, begin, end);
      return true;
    default:
      return false;
  }
}
extern "C" void host_add(const float* __restrict a, const float* __restrict b, float* __restrict c,
                         std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
}
