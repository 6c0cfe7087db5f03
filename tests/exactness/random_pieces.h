#pragma once

// What both kinds of runs share: a case's seeds, weights, data, faults, and hashes of tensors.

#include <cstring>
#include <thread>

#include "exactness/random_models.h"
#include "exactness/random_run.h"

namespace tutti::test::exact {

/// Thrown by a closure, once per process.
struct PlannedFailure : std::runtime_error {
  PlannedFailure() : std::runtime_error("planned") {}
};

class Pieces {
 public:
  explicit Pieces(const Choices& one)
      : one_(one), seed_(static_cast<std::uint64_t>(one.number("seed"))) {}

  std::uint64_t seed() const { return seed_; }
  std::uint64_t pick(std::int64_t step, std::int64_t index, std::string_view what) const {
    return number_of(seed_, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(index),
                     what);
  }

  double weight(std::int64_t step, std::int64_t index) const {
    const auto drawn = pick(step, index, "weight");
    if (one_.is("weights", "whole")) return static_cast<double>(1 + drawn % 4);
    if (one_.is("weights", "tenths")) return static_cast<double>(1 + drawn % 99) / 10;
    if (one_.is("weights", "some-zero") && index > 0) return static_cast<double>(drawn % 3);
    return 1;
  }

  /// Nothing where the piece has no data.
  bool is_gap(std::int64_t step, std::int64_t index) const {
    return one_.has("gaps") && pick(step, index, "gap") % 4 == 0;
  }

  RandomPiece piece(std::int64_t step, std::int64_t index) const {
    RandomPiece piece{.seed = pick(step, index, "data"), .step = step, .index = index};
    if (one_.is("data", "generator")) {
      piece.seed = static_cast<std::uint64_t>(torch::randint(1 << 30, {1}).item<std::int64_t>());
    }
    piece.rows = one_.number("rows");
    if (one_.is("model", "conv") && one_.is("dtype", "half")) return piece;
    piece.rows += static_cast<std::int64_t>(pick(step, index, "rows") % 3);
    return piece;
  }

  bool throws(std::int64_t step, std::int64_t index, const char* where) {
    if (!one_.is("throw", where) || step != one_.number("throw-step") || has_thrown_) return false;
    if (index != one_.number("throw-shard") % one_.number("shards")) return false;
    return has_thrown_ = true;
  }

  torch::Tensor with_fault(const torch::Tensor& loss, std::int64_t step, std::int64_t index) const {
    const auto& fault = one_["fault"];
    if (fault == "none" || step != one_.number("fault-step")) return loss;
    if (index != one_.number("fault-shard") % one_.number("shards")) return loss;
    if (fault == "nan") return loss * std::numeric_limits<double>::quiet_NaN();
    return loss * (fault == "inf" ? std::numeric_limits<double>::infinity() : 1e9);
  }

  /// Some workers come later than others.
  void idle(const Job& job, std::int64_t step) const {
    if (!one_.has("late")) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(pick(step, job.rank(), "late") % 8));
  }

 private:
  const Choices& one_;
  std::uint64_t seed_;
  bool has_thrown_ = false;
};

/// FNV-1a over the bytes, and type and shape: tells where two runs differ.
inline std::string hash_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  if (tensor.is_sparse()) {
    const auto rows = tensor.coalesce();
    return "rows " + hash_of(rows.indices()) + " " + hash_of(rows.values());
  }
  const auto dense = tensor.detach().contiguous();
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = static_cast<const unsigned char*>(dense.data_ptr());
  for (std::size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return fmt::format("{} {} {:016x}", c10::toString(dense.scalar_type()),
                     fmt::join(dense.sizes(), "×"), hash);
}

/// All its bits; any NaN is the same.
inline std::string text_of(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:a}", value);
}

inline void add_tensors(Transcript& out, std::int64_t step, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    out.push_back(fmt::format("step {} parameter {}: {}", step, item.key(), hash_of(item.value())));
  }
  for (const auto& item : module.named_buffers()) {
    out.push_back(fmt::format("step {} buffer {}: {}", step, item.key(), hash_of(item.value())));
  }
}

Transcript train_with_trainer(const Choices& one, const Job& job, const Stretch& stretch,
                              const std::string& folder);
Transcript train_with_parallel(const Choices& one, const Job& job, const Stretch& stretch,
                               const std::string& folder);

}  // namespace tutti::test::exact
