#pragma once

// Makes one message: the values of one logical worker for one bucket of parameters, from its folded
// gradients and what is kept of earlier ones.
//
// Threads: one. No two workers make the same message.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/coded/message_store.h"
#include "sync/plan/plan.h"
#include "tutti/codec.h"

namespace tutti {

/// Whether messages are made tile by tile: that of a bucket is then the parts of its parameters,
/// one after the other.
bool works_in_tiles(const Compression& compression);
/// Bytes of the part of a parameter of `count` elements.
std::size_t part_bytes(const Codec& codec, std::int64_t count);

struct MessageTask {
  std::size_t logical = 0;
  std::size_t bucket = 0;
  /// The touched parameters of the bucket, in registration order. There is no message if it is
  /// empty.
  std::span<const std::uint32_t> touched = {};
  std::int64_t step = 1;
};

/// A parameter's own values, one after the other.
struct ParameterValues {
  const std::byte* data = nullptr;
  DType type = DType::float32;
};

class BucketEncoder {
 public:
  using Values = std::function<ParameterValues(std::uint32_t parameter)>;
  /// Keeps references. `values` reads a parameter's values, for weight decay.
  BucketEncoder(const Plan& plan, MessageStore& board, const Compression& compression,
                Values values);

  /// Writes elements [begin, begin + count) of the current gradient, float32, to `to`.
  using TileFold = std::function<void(std::int64_t begin, std::int64_t count, void* to)>;
  /// Gives the fold of a parameter.
  using Folds = std::function<TileFold(std::uint32_t parameter)>;

  /// Writes the message and its header. Where there is no message, the header contains the reason.
  void encode(const MessageTask& task, const Folds& folds);
  /// The context of a message of `count` values in step `step`.
  EncodeContext context_of(std::int64_t count, std::int64_t step) const {
    return {.logical_workers = static_cast<std::int64_t>(board_.logical_workers()),
            .message_format = compression_.message_format,
            .step = step,
            .count = count};
  }

  /// Private memory of this worker.
  std::size_t bytes() const { return values_.size() * sizeof(float); }

 private:
  /// The values of a message that is being made.
  struct Message {
    std::span<float> values;
    std::vector<std::int64_t> at;  ///< of each touched parameter, its first
  };
  enum class Made { well, overflow, with_residual };
  /// Empty where there are no values, or where some cannot be made: the header then contains the
  /// reason.
  std::optional<Message> values_of(const MessageTask& task, const Folds& folds);
  /// Folds elements from `begin` on into `tile` and adds what is kept.
  Made make_tile(std::size_t logical, std::uint32_t parameter, const TileFold& fold,
                 std::int64_t begin, std::span<float> tile);
  void require_room(std::size_t bucket, std::int64_t count, std::size_t bytes) const;
  void encode_in_tiles(const MessageTask& task, const Folds& folds);
  void add_what_is_kept(std::size_t logical, std::uint32_t parameter, std::int64_t begin,
                        std::span<float> tile);
  void keep(const MessageTask& task, const Message& made, const EncodeContext& context,
            std::span<const std::byte> message);
  void refuse(const MessageTask& task, std::uint32_t parameter, const std::string& why);
  void refuse(const MessageTask& task, std::uint32_t parameter, Made how);
  std::int64_t count_of(std::uint32_t parameter) const {
    return plan_.parameters()[parameter].spec.count;
  }

  const Plan& plan_;
  MessageStore& board_;
  const Compression& compression_;
  Values own_values_;
  std::vector<float> values_;  ///< of a bucket or a tile, where they cannot be made in place
};

}  // namespace tutti
