#pragma once

// Torch's generator of random numbers on the CPU, which all of a program shares.
//
// Threads: one.

#include <torch/torch.h>

#include <cstdint>

namespace tutti {

/// Puts torch's generator back to where it stood.
class GeneratorGuard {
 public:
  GeneratorGuard();
  ~GeneratorGuard();
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

/// Where torch's generator stood when this was made.
class GeneratorMark {
 public:
  GeneratorMark();
  struct Position {
    std::uint64_t seed = 0;   ///< what the generator was seeded with last
    std::uint64_t state = 0;  ///< digest of where it stood; 0: unknown, it was seeded since
  };
  Position position() const;

 private:
  std::uint64_t seed_;
  std::uint64_t state_;
};

}  // namespace tutti
