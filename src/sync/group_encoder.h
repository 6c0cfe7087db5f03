#pragma once

// Makes one message: the values of one logical worker for one group of parameters, from its folded
// gradients and what earlier messages left out.
//
// Threads: one. No two workers make the same message.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sync/message_board.h"
#include "sync/plan.h"
#include "tutti/codec.h"

namespace tutti {

/// What each of so many messages is one of.
inline Exchange exchange_of(const Compression& compression, std::size_t logical_workers) {
  return {.logical_workers = static_cast<std::int64_t>(logical_workers),
          .transport = compression.transport};
}

class GroupEncoder {
 public:
  /// Keeps references.
  GroupEncoder(const Plan& plan, MessageBoard& board, const Compression& compression);

  /// Writes elements [begin, begin + count) of the gradient at hand, float32, to `to`.
  using TileFold = std::function<void(std::int64_t begin, std::int64_t count, void* to)>;
  /// Of a parameter.
  using Folds = std::function<TileFold(std::uint32_t parameter)>;

  /// Of the group's parameters those that were touched, in registration order; none: no message.
  /// Why there is no message is in its header.
  void encode(std::size_t logical, std::size_t group, std::span<const std::uint32_t> touched,
              const Folds& folds);

  /// Of this worker's own.
  std::size_t bytes() const { return values_.size() * sizeof(float); }
  Exchange exchange() const { return exchange_of(compression_, board_.logical_workers()); }

 private:
  enum class Made { well, overflow, with_residual };
  Made make_values(std::size_t logical, std::uint32_t parameter, const TileFold& fold, float* to);
  void refuse(std::size_t logical, std::size_t group, std::uint32_t parameter,
              const std::string& why);
  std::int64_t count_of(std::uint32_t parameter) const {
    return plan_.parameters()[parameter].spec.count;
  }

  const Plan& plan_;
  MessageBoard& board_;
  const Compression& compression_;
  std::vector<float> values_;  ///< of a group, where they cannot be made in place
};

}  // namespace tutti
