#pragma once

// Sources of one fold at a chosen offset from a 64-byte boundary, and what comes out of it.

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <vector>

#include "kernels/fold.h"
#include "scalar_model.h"

namespace tutti {

/// Elements between guard bytes, `offset` elements behind a 64-byte boundary.
template <class T>
class Placed {
 public:
  Placed(const std::vector<T>& values, std::size_t offset)
      : bytes_(values.size() * sizeof(T)),
        begin_(kGuard + offset * sizeof(T)),
        size_(begin_ + bytes_ + kGuard),
        memory_(static_cast<std::byte*>(::operator new (size_, std::align_val_t{64}))) {
    std::memset(memory_.get(), 0xA5, size_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T value = values[i];
      std::memcpy(memory_.get() + begin_ + i * sizeof(T), &value, sizeof(T));
    }
  }

  void* data() { return memory_.get() + begin_; }
  std::vector<std::byte> bytes() const {
    return {memory_.get() + begin_, memory_.get() + begin_ + bytes_};
  }
  T at(std::size_t i) const {
    T value;
    std::memcpy(&value, memory_.get() + begin_ + i * sizeof(T), sizeof(T));
    return value;
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < size_; ++i) {
      const bool inside = i >= begin_ && i < begin_ + bytes_;
      if (!inside && memory_.get()[i] != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::size_t bytes_;
  std::size_t begin_;
  std::size_t size_;
  std::unique_ptr<std::byte, Free> memory_;
};

struct Recipe {
  Reduction reduction = Reduction::sum;
  double divisor = 1.0;
  std::size_t offset = 0;
  bool in_place = false;
  std::size_t fan_out = 1;  ///< ignored in place: every source is a destination
};

/// Folds along the canonical tree; every destination is checked to hold the same bytes.
template <class S, class R>
std::vector<std::byte> folded(const std::vector<std::vector<S>>& sources, const Recipe& recipe,
                              const FoldProgram& program) {
  std::vector<Placed<S>> from;
  std::vector<Placed<R>> to;
  std::vector<const void*> source_data;
  std::vector<void*> destination_data;
  for (const auto& values : sources) from.emplace_back(values, recipe.offset);
  for (auto& source : from) source_data.push_back(source.data());
  if (recipe.in_place) {
    for (auto& source : from) destination_data.push_back(source.data());
  } else {
    const std::vector<R> empty(sources[0].size());
    for (std::size_t k = 0; k < recipe.fan_out; ++k) to.emplace_back(empty, recipe.offset);
    for (auto& destination : to) destination_data.push_back(destination.data());
  }
  fold({.program = &program,
        .reduction = recipe.reduction,
        .source_type = model::DTypeOf<S>::value,
        .result_type = model::DTypeOf<R>::value,
        .divisor = recipe.divisor,
        .sources = source_data,
        .destinations = destination_data,
        .count = static_cast<std::int64_t>(sources[0].size())});
  const auto bytes = recipe.in_place ? from[0].bytes() : to[0].bytes();
  for (std::size_t k = 0; k < from.size(); ++k) {
    EXPECT_TRUE(from[k].guards_intact());
    if (recipe.in_place) {
      EXPECT_EQ(from[k].bytes(), bytes);
    } else {
      EXPECT_EQ(from[k].bytes(), Placed<S>(sources[k], 0).bytes()) << "a source was written";
    }
  }
  for (const auto& destination : to) {
    EXPECT_TRUE(destination.guards_intact());
    EXPECT_EQ(destination.bytes(), bytes);
  }
  return bytes;
}

template <class S, class R>
std::vector<std::byte> folded(const std::vector<std::vector<S>>& sources, const Recipe& recipe) {
  return folded<S, R>(sources, recipe, FoldProgram::canonical(static_cast<int>(sources.size())));
}

template <class T>
std::vector<std::vector<T>> random_sources(std::size_t n, std::size_t count, std::uint64_t seed) {
  std::vector<std::vector<T>> sources;
  for (std::size_t k = 0; k < n; ++k) {
    sources.push_back(model::random_values<T>(count, 1000 * seed + k));
  }
  return sources;
}

/// The scalar model of the same fold.
template <class S, class R>
std::vector<R> modelled(const std::vector<std::vector<S>>& sources, const Recipe& recipe) {
  using C = decltype(model::widen(S{}));
  std::vector<R> result;
  for (std::size_t i = 0; i < sources[0].size(); ++i) {
    C value = model::tree(recipe.reduction, 0, static_cast<int>(sources.size()), [&](int k) -> C {
      return model::widen(S(sources[static_cast<std::size_t>(k)][i]));
    });
    if constexpr (std::is_floating_point_v<C>) {
      if (recipe.divisor != 1.0) value = value / static_cast<C>(recipe.divisor);
    }
    result.push_back(model::narrow<R>(value));
  }
  return result;
}

/// Element by element; any NaN stands for any other.
template <class R>
void expect_same(const std::vector<std::byte>& bytes, const std::vector<R>& expected) {
  ASSERT_EQ(bytes.size(), expected.size() * sizeof(R));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    R value;
    std::memcpy(&value, bytes.data() + i * sizeof(R), sizeof(R));
    ASSERT_TRUE(model::same<R>(value, expected[i])) << "element " << i;
  }
}

}  // namespace tutti
