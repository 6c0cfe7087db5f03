#pragma once

// Two hashes, each for one purpose: XXH3 (libxxhash) where speed matters and no attack is expected,
// SHA-256 (OpenSSL) where a user reads or compares it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tutti {

std::uint64_t digest(const void* data, std::size_t bytes, std::uint64_t seed = 0) noexcept;
inline std::uint64_t digest(std::string_view text, std::uint64_t seed = 0) noexcept {
  return digest(text.data(), text.size(), seed);
}

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(const void* data, std::size_t bytes);
  /// 64 lower-case hexadecimal digits. Ends the hash.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
