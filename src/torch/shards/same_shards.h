#pragma once

// Looks in a Trainer's first step for a silent mistake: all shards compute the same gradient,
// because all have the same batch. Each worker notes what its own shards gave; the notes travel
// with StepNotes, and no bit depends on them.
//
// Threads: one. Failure: none.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/fold.h"
#include "kernels/hash.h"

namespace tutti {

class SameShards {
 public:
  /// A step begins; only with `looks` anything is noted.
  void open(bool looks) {
    looks_ = looks;
    common_.reset();
  }
  void begin_shard() { sum_ = 0; }
  /// A gradient as backward gave it; of a row-sparse one, its values.
  void add(std::size_t parameter, const void* values, std::size_t bytes) {
    if (looks_ && !all_zero(values, bytes)) sum_ += digest(values, bytes, parameter);
  }
  /// The shard is over, and has a weight.
  void end_shard() {
    if (looks_) common_ = !common_ || *common_ == sum_ ? sum_ : kDiffer;
  }
  /// Digest of the gradient that all shards so far gave; kNone where it is zero everywhere, and
  /// without shards; kDiffer where they gave different ones.
  std::uint64_t common() const { return common_.value_or(kNone); }
  bool looks() const { return looks_; }
  static constexpr std::uint64_t kNone = 0;
  static constexpr std::uint64_t kDiffer = 1;

 private:
  bool looks_ = false;
  std::uint64_t sum_ = 0;  ///< digests of the shard's gradients that are not zero everywhere
  std::optional<std::uint64_t> common_;
};

}  // namespace tutti
