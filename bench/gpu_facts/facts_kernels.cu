// Compiled twice: -DFACTS_NAME=exact -fmad=false, and -DFACTS_NAME=contracted with nvcc's defaults (the negative control).
#include <cuda_runtime.h>

#include "facts_fold.h"

#define FACTS_JOIN2(a, b) a##b
#define FACTS_JOIN(a, b) FACTS_JOIN2(a, b)

namespace FACTS_NAME {
template <int N>
__global__ void fold_adam(Sources s, float divisor, bool divides, Adam by, float* p, float* m, float* v, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count; i += std::int64_t(gridDim.x) * blockDim.x) {
    adam_at(tree<N>(s.node, i), divisor, divides, by, p[i], m[i], v[i]);
  }
}
__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
template <int N, int kFirst = 0>
__device__ float4 tree4(const Sources& s, std::int64_t i) {
  if constexpr (N == 1) {
    return reinterpret_cast<const float4*>(s.node[kFirst])[i];
  } else {
    constexpr int left = N <= 2 ? 1 : N <= 4 ? 2 : 4;
    return tree4<left, kFirst>(s, i) + tree4<N - left, kFirst + left>(s, i);
  }
}
template <int N>
__global__ void fold_adam4(Sources s, float divisor, bool divides, Adam by, float4* p_at, float4* m_at, float4* v_at, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count; i += std::int64_t(gridDim.x) * blockDim.x) {
    const float4 g = tree4<N>(s, i);
    float4 p = p_at[i], m = m_at[i], v = v_at[i];
    adam_at(g.x, divisor, divides, by, p.x, m.x, v.x);
    adam_at(g.y, divisor, divides, by, p.y, m.y, v.y);
    adam_at(g.z, divisor, divides, by, p.z, m.z, v.z);
    adam_at(g.w, divisor, divides, by, p.w, m.w, v.w);
    p_at[i] = p, m_at[i] = m, v_at[i] = v;
  }
}
template <int N>
void start(const Sources& s, float divisor, const Adam& by, float* p, float* m, float* v, std::int64_t count, int width, int blocks,
           cudaStream_t stream) {
  if (width == 4) {
    fold_adam4<N><<<blocks, 256, 0, stream>>>(s, divisor, divisor != 1, by, reinterpret_cast<float4*>(p), reinterpret_cast<float4*>(m),
                                              reinterpret_cast<float4*>(v), count / 4);
  } else {
    fold_adam<N><<<blocks, 256, 0, stream>>>(s, divisor, divisor != 1, by, p, m, v, count);
  }
}
}  // namespace FACTS_NAME

/// `width` 4: count is a multiple of 4, all addresses of 16.
extern "C" cudaError_t FACTS_JOIN(fold_adam_, FACTS_NAME)(int n, const Sources* s, float divisor, const Adam* by, float* p, float* m, float* v,
                                                          std::int64_t count, int width, int blocks, cudaStream_t stream) {
  using namespace FACTS_NAME;
  switch (n) {
    case 1: start<1>(*s, divisor, *by, p, m, v, count, width, blocks, stream); break;
    case 2: start<2>(*s, divisor, *by, p, m, v, count, width, blocks, stream); break;
    case 3: start<3>(*s, divisor, *by, p, m, v, count, width, blocks, stream); break;
    case 4: start<4>(*s, divisor, *by, p, m, v, count, width, blocks, stream); break;
    case 8: start<8>(*s, divisor, *by, p, m, v, count, width, blocks, stream); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}
