// The canonical tree over up to eight nodes, the one division, and Adam: one text for g++
// (-ffp-contract=off) and nvcc (-fmad=false).
#pragma once
#include <math.h>

#include <cstdint>
#ifdef __CUDACC__
#define TUTTI_HD __host__ __device__ __forceinline__
#else
#define TUTTI_HD inline __attribute__((always_inline))
#endif

struct Sources {
  const float* node[8];
};
struct Adam {
  float beta1, fresh1, beta2, fresh2, epsilon, rate, root, decay, kept;
  bool shrinks, decays;
};

template <int N, int kFirst = 0>
TUTTI_HD float tree(const float* const* s, std::int64_t i) {
  if constexpr (N == 1) {
    return s[kFirst][i];
  } else {
    constexpr int left = N <= 2 ? 1 : N <= 4 ? 2 : 4;
    return tree<left, kFirst>(s, i) + tree<N - left, kFirst + left>(s, i);
  }
}
TUTTI_HD void adam_at(float g, float divisor, bool divides, const Adam& by, float& p_at,
                      float& m_at, float& v_at) {
  if (divides) g = g / divisor;
  float p = p_at;
  if (by.shrinks) p = p * by.kept;
  if (by.decays) g = g + by.decay * p;
  const float m = by.beta1 * m_at + by.fresh1 * g;
  const float v = by.beta2 * v_at + (by.fresh2 * g) * g;
  m_at = m;
  v_at = v;
  p_at = p - (by.rate * m) / (sqrtf(v) / by.root + by.epsilon);
}
