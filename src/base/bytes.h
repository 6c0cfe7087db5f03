#pragma once

// Values as bytes that another process of the job reads: each as it lies in memory, without gaps.
//
// Threads: values. Failure: a read past the end is an InternalError.

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

#include "base/check.h"

namespace tutti {

/// Appends the elements of `values` to `to`, a vector of bytes or a string.
template <class Bytes, class Values>
void append_all(Bytes& to, const Values& values) {
  const auto* const begin = reinterpret_cast<const typename Bytes::value_type*>(values.data());
  const auto size = std::span(values).size_bytes();
  // GCC 12 warns of a string's insert(), wrongly, where it is inlined.
  if constexpr (requires { to.append(begin, size); }) {
    to.append(begin, size);
  } else {
    to.insert(to.end(), begin, begin + size);
  }
}
template <class Bytes, class Value>
void append(Bytes& to, const Value& value) {
  append_all(to, std::span(&value, 1));
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct ByteReader {
  std::span<const std::byte> left;
  std::span<const std::byte> bytes(std::size_t size) {
    TUTTI_CHECK(size <= left.size(), "{} bytes are read where {} are left", size, left.size());
    const auto read = left.first(size);
    left = left.subspan(size);
    return read;
  }
  template <class Value>
  Value value() {
    Value value;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
};

}  // namespace tutti
