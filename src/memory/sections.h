#pragma once

// Typed sections of a block of memory, laid out one behind the other on cache lines of their own.
// What describes a layout is a class whose constructor takes its sections from a Sections, in
// order: once without memory, for the bytes that they need, and then in each block that has them.
//
// Threads: values; the memory is synchronised by its users. Failure: none.

#include <cstddef>
#include <span>
#include <vector>

#include "memory/arena.h"

namespace tutti {

/// Each section begins at a multiple of this many bytes of its block: a cache line.
inline constexpr std::size_t kSectionAlignment = 64;

/// The part of a block that is not taken yet.
class Sections {
 public:
  /// Of no memory: bytes() tells how much would be needed.
  Sections() = default;
  /// Of a block that begins on a cache line.
  explicit Sections(std::byte* block) : block_(block) {}

  /// Bytes that are taken.
  std::size_t bytes() const { return bytes_; }
  void align(std::size_t bytes) { bytes_ = round_up(bytes_, bytes); }
  /// Null where there is no memory.
  std::byte* take(std::size_t bytes) {
    auto* const at = block_ == nullptr ? nullptr : block_ + bytes_;
    bytes_ += round_up(bytes, kSectionAlignment);
    return at;
  }

 private:
  std::byte* block_ = nullptr;
  std::size_t bytes_ = 0;
};

/// `count` neighbouring values.
template <class T>
struct Section : std::span<T> {
  static_assert(alignof(T) <= kSectionAlignment);
  Section() = default;
  explicit Section(Sections& from, std::size_t count = 1)
      : Section(reinterpret_cast<T*>(from.take(count * sizeof(T))), count) {}

 private:
  Section(T* at, std::size_t count) : std::span<T>(at, at == nullptr ? 0 : count) {}
};

/// `rows` arrays of `count` values, each of which begins on a cache line.
template <class T>
class SectionRows {
 public:
  SectionRows(Sections& from, std::size_t rows, std::size_t count)
      : stride_(round_up(count * sizeof(T), kSectionAlignment)), at_(from.take(rows * stride_)) {
    static_assert(alignof(T) <= kSectionAlignment);
  }
  T* operator[](std::size_t row) const { return reinterpret_cast<T*>(at_ + row * stride_); }

 private:
  std::size_t stride_;
  std::byte* at_;
};

/// A section for each of `counts`, in that order.
template <class T>
struct SectionList : std::vector<Section<T>> {
  SectionList() = default;
  SectionList(Sections& from, const std::vector<std::size_t>& counts) {
    for (const auto count : counts) this->emplace_back(from, count);
  }
};

/// Bytes of the sections of a Part(Sections&, args…).
template <class Part, class... Args>
std::size_t bytes_of_sections(const Args&... args) {
  Sections none;
  Part(none, args...);
  return none.bytes();
}

}  // namespace tutti
