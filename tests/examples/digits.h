#pragma once

// Small data in MNIST's format, and the examples' programs.

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {

inline std::string program(const std::string& name) {
  return std::string(TUTTI_EXAMPLES) + "/" + name;
}

/// `dims` sizes and the bytes after them.
inline void write_idx(const std::string& path, const std::vector<std::uint32_t>& sizes,
                      const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  const auto number = [&](std::uint32_t value) {
    for (const int shift : {24, 16, 8, 0}) file.put(static_cast<char>(value >> shift & 0xFFU));
  };
  number(0x0800U + static_cast<std::uint32_t>(sizes.size()));
  for (const auto size : sizes) number(size);
  file << bytes;
}

/// Noise with a bright row, at a height that the class decides.
inline void write_digits(const std::string& folder, const std::string& part, std::uint32_t count) {
  std::mt19937 random(count);
  std::string pixels, classes;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto digit = random() % 10;
    classes += static_cast<char>(digit);
    for (std::uint32_t p = 0; p < 28 * 28; ++p) {
      pixels += static_cast<char>(p / 28 / 2 == digit + 2 ? 200 + random() % 50 : random() % 60);
    }
  }
  write_idx(folder + "/" + part + "-images-idx3-ubyte", {count, 28, 28}, pixels);
  write_idx(folder + "/" + part + "-labels-idx1-ubyte", {count}, classes);
}

}  // namespace tutti::test
