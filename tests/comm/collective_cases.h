#pragma once

// Inputs that differ on every rank, what a collective must make of them by a scalar model, and
// memory to run it in.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/scalar_model.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "tutti/group.h"

namespace tutti::test {

/// A fixed number of elements; unlike std::vector<bool>, real ones.
template <class T>
class Values {
 public:
  explicit Values(std::int64_t count)
      : count_(count), data_(new T[static_cast<std::size_t>(count) + 1]()) {}
  static Values random(std::int64_t count, std::uint64_t seed) {
    Values values(count);
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < count; ++i) values[i] = model::random_value<T>(random);
    return values;
  }
  T& operator[](std::int64_t i) { return data_[static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const { return data_[static_cast<std::size_t>(i)]; }
  T* data() const { return data_.get(); }
  std::int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

 private:
  std::int64_t count_;
  std::unique_ptr<T[]> data_;
};

/// One set of values per rank.
template <class T>
std::vector<Values<T>> random_inputs(int ranks, std::int64_t count, std::uint64_t seed = 1) {
  std::vector<Values<T>> inputs;
  for (int rank = 0; rank < ranks; ++rank)
    inputs.push_back(Values<T>::random(count, seed * 1000 + static_cast<std::uint64_t>(rank)));
  return inputs;
}

/// The reduction over ranks along the canonical tree, element by element.
template <class T>
Values<T> reduced(const std::vector<Values<T>>& inputs, Reduction reduction) {
  const auto ranks = static_cast<int>(inputs.size());
  Values<T> result(inputs[0].count());
  const Reduction step = reduction == Reduction::mean ? Reduction::sum : reduction;
  for (std::int64_t i = 0; i < result.count(); ++i) {
    auto value = model::tree(step, 0, ranks, [&](int rank) {
      return model::widen(inputs[static_cast<std::size_t>(rank)][i]);
    });
    if constexpr (!std::is_integral_v<T>) {
      if (reduction == Reduction::mean) value = value / static_cast<decltype(value)>(ranks);
    }
    result[i] = model::narrow<T>(value);
  }
  return result;
}

template <class T>
ConstView view(const Values<T>& values) {
  return {values.data(), values.count(), model::DTypeOf<T>::value};
}
template <class T>
View view(Values<T>& values) {
  return {values.data(), values.count(), model::DTypeOf<T>::value};
}
template <class T>
View view(T* data, std::int64_t count) {
  return {data, count, model::DTypeOf<T>::value};
}

/// True where all elements are the same bits (or NaN both); else says where they are not.
template <class T>
::testing::AssertionResult same_values(const T* got, const T* wanted, std::int64_t count) {
  if (count == 0 || std::memcmp(got, wanted, static_cast<std::size_t>(count) * sizeof(T)) == 0)
    return ::testing::AssertionSuccess();
  for (std::int64_t i = 0; i < count; ++i) {
    if (!model::same(got[i], wanted[i]))
      return ::testing::AssertionFailure() << "element " << i << " of " << count << " differs";
  }
  return ::testing::AssertionSuccess();
}

/// Where a rank keeps the two spans of a call.
struct Placement {
  bool in_shared = false;
  bool out_shared = false;
  bool in_place = false;
  std::int64_t shift = 0;  ///< elements from the aligned start
};

/// The usual ways, alike on all ranks, and two where ranks differ.
inline std::vector<std::string> placement_names() {
  return {"private",    "private in place", "shared",       "shared in place",
          "out shared", "in shared",        "ranks differ", "ranks differ, shifted"};
}
inline Placement placement(std::size_t index, int rank) {
  switch (index) {
    case 0:
      return {};
    case 1:
      return {.in_place = true};
    case 2:
      return {.in_shared = true, .out_shared = true, .shift = 1};
    case 3:
      return {.in_shared = true, .out_shared = true, .in_place = true};
    case 4:
      return {.out_shared = true, .shift = 5};
    case 5:
      return {.in_shared = true};
    case 6:
      return {.in_shared = rank % 2 == 0, .out_shared = rank % 2 == 0, .in_place = rank % 3 == 0};
    default:
      return {.in_shared = rank % 2 == 1, .out_shared = rank % 3 == 1, .shift = rank};
  }
}

/// Memory of one rank for calls of up to `most` elements in `in` and in `out`.
template <class T>
class Room {
 public:
  static constexpr std::int64_t kShift = 64;
  Room(const Group& group, std::int64_t most)
      : most_(most + kShift),
        shared_(group.allocate(static_cast<std::size_t>(2 * most_) * sizeof(T), "room")),
        private_(2 * most_) {}
  T* in(const Placement& at) { return base(at.in_shared) + at.shift; }
  T* out(const Placement& at) {
    return at.in_place ? in(at) : base(at.out_shared) + most_ + at.shift;
  }

 private:
  T* base(bool shared) { return shared ? reinterpret_cast<T*>(shared_.data()) : private_.data(); }
  std::int64_t most_;
  SharedMemory shared_;
  Values<T> private_;
};

}  // namespace tutti::test
