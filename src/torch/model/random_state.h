#pragma once

// Where torch's random numbers stand: the generators that draw wherever an operation names none,
// which all of a program shares, of the CPU and of the device that a model is on. Whatever in src/
// saves, puts back or compares them does so here. tutti/shard_loader.h looks by
// itself whether a dataset draws.
//
// Threads: any; each state is taken and put back under its generator's lock. Failure: what torch
// throws for a generator whose state it cannot take.

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tutti {

class RandomState {
 public:
  /// As they stand: the CPU's, and that of `device`.
  explicit RandomState(c10::Device device = c10::kCPU);
  /// As bytes() of another one, maybe in another process.
  explicit RandomState(const torch::Tensor& bytes);
  /// Also that of a generator of the program's own.
  void add(at::Generator generator);
  /// The same generators as they stand at the call.
  RandomState now() const;
  /// Puts the generators back to where they stood.
  void restore() const;
  /// State of the CPU's default generator.
  const torch::Tensor& bytes() const { return states_.front().second; }
  /// A digest of all states.
  std::uint64_t digest() const;
  /// What each generator was seeded with last, at the call.
  std::vector<std::uint64_t> seeds() const;

 private:
  std::vector<std::pair<at::Generator, torch::Tensor>> states_;
};

/// What is drawn and seeded while it lives does not count.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(c10::Device device = c10::kCPU) : before_(device) {}
  ~RandomStateGuard() { before_.restore(); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  RandomState before_;
};

/// Where the default generators, as RandomState has them, stood when this was made.
class RandomStateMark {
 public:
  explicit RandomStateMark(c10::Device device = c10::kCPU);
  struct Position {
    std::uint64_t seed = 0;   ///< what the CPU's was seeded with last
    std::uint64_t state = 0;  ///< digest of where they stood; 0: unknown, one was seeded since
  };
  Position position() const;

 private:
  RandomState then_;
  std::vector<std::uint64_t> seeds_;
};

}  // namespace tutti
