#pragma once

// Element types, reductions and untyped views: the vocabulary in which the core speaks of data.
//
// Threads: values and pure functions. Failure: size_of and name_of accept every enumerator.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

enum class DType : std::uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int32,
  int64,
  uint8,
  boolean
};

/// How elements of different ranks are combined. `mean` is sum divided once by the number of ranks
/// and needs a floating type. `logical_and` and `logical_or` need DType::boolean, which takes no
/// other reduction. `max` and `min` propagate NaN.
enum class Reduction : std::uint8_t { sum, mean, max, min, product, logical_and, logical_or };

/// Bytes of one element.
std::size_t size_of(DType dtype) noexcept;
/// "float32", "bfloat16", …
std::string_view name_of(DType dtype) noexcept;
std::string_view name_of(Reduction reduction) noexcept;
bool is_floating(DType dtype) noexcept;
/// True where the pair is defined: see Reduction.
bool is_defined(Reduction reduction, DType dtype) noexcept;

/// `count` contiguous elements that may be written.
struct View {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::float32;
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(count) * size_of(dtype); }
};

/// `count` contiguous elements that are only read.
struct ConstView {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::float32;
  ConstView() = default;
  ConstView(const void* d, std::int64_t n, DType t) : data(d), count(n), dtype(t) {}
  /* implicit */ ConstView(const View& v) : data(v.data), count(v.count), dtype(v.dtype) {}
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(count) * size_of(dtype); }
};

}  // namespace tutti
