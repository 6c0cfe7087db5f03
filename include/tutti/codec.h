#pragma once

// Formats of gradients in messages. A codec writes the folded gradient of one logical worker as a
// message per bucket of parameters, and reads the values back; what it left out may be kept and
// added to the next gradient (error feedback). All of these but no codec at all are lossy and
// experimental: docs/codecs.md says what each one sends, and when it pays.
//
//   tutti::Trainer trainer(job, *model, tutti::Adam{},
//                          {.shards = 8,
//                           .compression = {.codec = tutti::top_k_codec(0.01)},
//                           .logical_workers = 4});
//
// Threads: codecs are immutable values; their functions may be called by several threads at once.
// Failure: InvalidArgument for parameters that make no sense.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// The format in which sparse messages travel. No bit of a result depends on it.
enum class MessageFormat : std::uint8_t {
  by_size,  ///< as lists or as dense arrays, whichever is fewer bytes
  sparse,   ///< always as lists
  dense,    ///< always as dense arrays, −0.0 where nothing is sent
};

/// "by size", "sparse", "dense".
std::string_view name_of(MessageFormat message_format);

/// The context of a message that a codec encodes.
struct EncodeContext {
  std::int64_t logical_workers = 1;  ///< messages that are added up
  MessageFormat message_format = MessageFormat::by_size;
  std::int64_t step = 1;   ///< of the run, counted from 1; dropped ones count
  std::int64_t count = 0;  ///< values of the message
};

/// The result of encode().
struct Encoded {
  std::size_t bytes = 0;        ///< of the message
  std::int64_t values = 0;      ///< that were sent
  bool is_dense = true;         ///< false: as a list
  std::string refusal = {};     ///< why these values cannot be sent; empty: they were
  std::int64_t refused_at = 0;  ///< index of the value that is to blame
};

/// The values that a message contains: all others are −0.0.
struct MessageList {
  std::span<const std::uint32_t> indices;  ///< ascending, each once
  std::span<const float> values;           ///< one for each
};

/// One way to write float32 values. The values of a message are those of all parameters of a bucket
/// that have a gradient, one after the other in registration order.
class Codec {
 public:
  virtual ~Codec() = default;
  /// Tells it apart from every other, parameters included: "topk:0.05". Compared on all workers,
  /// and part of a run.
  virtual std::string name() const = 0;
  /// Most values of a message. Unless overridden: any number.
  virtual std::int64_t max_values() const;
  /// Most bytes of a message of `count` ≥ 1 values; of more values never less. In any step:
  /// context.step is not known here.
  virtual std::size_t bound(std::int64_t count, const EncodeContext& context) const = 0;
  /// Writes the context.count values, all of them finite, to `message`, which is aligned to 64
  /// bytes and has room for bound() bytes. A refusal drops the step on all workers.
  virtual Encoded encode(std::span<const float> values, const EncodeContext& context,
                         std::byte* message) const = 0;
  /// to[i] = what the message contains of value begin + i: −0.0 where nothing was sent. `context`
  /// is what encode() was given.
  virtual void decode(std::span<const std::byte> message, const EncodeContext& context,
                      std::int64_t begin, std::span<float> to) const = 0;
  /// The message as a list, if it is one. Unless overridden: it is not.
  virtual std::optional<MessageList> list_of(std::span<const std::byte> message) const;
  /// values[i] −= what the message contains of it: the residual. Unless overridden, by decode().
  virtual void subtract(std::span<const std::byte> message, const EncodeContext& context,
                        std::span<float> values) const;
  /// Bytes of a tile of `count` ≥ 1 values, where what is sent of a value depends on its tile
  /// alone: 4096 values of a parameter from a multiple of 4096 on, or what is left at its end. Each
  /// tile is then encoded and subtracted by itself, while it is hot, with a context.count of the
  /// tile; a message is its tiles, one after the other, and decode() is given that of one
  /// parameter. Unless overridden 0: messages are made as a whole.
  virtual std::size_t tile_bytes(std::int64_t count) const;
  /// Whether it sends some values as they are, and of the others nothing: decode() then gives −0.0
  /// just where nothing was sent. Unless overridden: no.
  virtual bool selects() const;

  // The sum of all messages, each weighted by its logical worker's share of the weight, is taken in
  // float32 along the tree and comes back in a fixed format.
  /// Rounds tiles of the sum of one parameter to that format: it begins at a multiple of 4096
  /// elements and ends at one, or with the parameter. Unless overridden: float32, as it is.
  virtual void round_sum(std::span<float> sum) const;
  /// Bytes of a sum of `count` elements, `values` of which are not −0.0; context.count is `count`.
  /// They are those of a bucket, or of one parameter where the codec has tile_bytes(); `values` is
  /// then `count`. Unless overridden: dense float32.
  virtual std::size_t sum_bytes(std::int64_t count, std::int64_t values,
                                const EncodeContext& context) const;
};

using CodecPointer = std::shared_ptr<const Codec>;

inline constexpr double kDefaultThreshold = 0.05;
inline constexpr double kDefaultFraction = 0.05;

/// 16-bit floats, rounded to nearest-even; the sum is rounded once more. Refuses what is beyond
/// 65504.
CodecPointer half_codec();
/// bfloat16, in the same way: float32's range, 8 bits of precision.
CodecPointer bfloat16_codec();
/// 8-bit integers with one float32 scale for each block of 256 values of a parameter, counted from
/// its first, and for what is left at its end: 3.94 times fewer bytes than float32. The scale is a
/// 127th of the block's largest magnitude, with 17 bits of precision and at least 2⁻¹²⁶; values are
/// rounded to nearest-even, and the sum is rounded once more, in the same blocks.
CodecPointer int8_codec();
/// Values of magnitude ≥ `threshold`, which is finite and not negative.
CodecPointer threshold_codec(double threshold = kDefaultThreshold);
/// Sends exactly max(1, round(fraction · n)) of n values, halves rounded up: those of largest
/// magnitude, of equal ones the lower index first. `fraction` in (0, 1]. In the first `warm_up`
/// steps it is larger (Lin et al. 2018, arXiv 1712.01887, §3.3): in their four quarters at least
/// 1/4, 1/16, 1/64 and 1/256.
CodecPointer top_k_codec(double fraction = kDefaultFraction, std::int64_t warm_up = 0);

/// "none" (a null pointer), "half", "bfloat16", "int8", "threshold", "threshold:0.1", "topk",
/// "topk:0.01", "topk:0.001:400" with 400 steps of warm-up. InvalidArgument for anything else, with
/// the names that there are.
CodecPointer codec_of(std::string_view text);

/// The scope of a codec: decides what top-K selects from.
enum class CodecScope : std::uint8_t {
  bucket,  ///< the parameters of a bucket: see Compression::fusion
  tensor,  ///< each parameter by itself
};

/// 2²¹ elements, as Apache SINGA's DistOpt.
inline constexpr std::int64_t kDefaultFusion = 2097152;
/// A bound for Compression::clamp, as in SINGA's half precision with clipping.
inline constexpr double kDefaultClamp = 100;

/// Momentum before anything is left out (Lin et al. 2018, "Deep gradient compression", arXiv
/// 1712.01887, algorithm 4 and §3.1 and 3.2, with weight decay first of all), for each logical
/// worker:
///   x = g + weight_decay · w       u ← momentum · u + x
///   v = residual + u               in Nesterov's form: residual + momentum · u + x
/// What is sent of v is selected by magnitude; where it was sent, residual and u become 0, and the
/// residual is v elsewhere. All in float32. The optimizer has to be stochastic gradient descent
/// without momentum or decay of its own.
struct MomentumCorrection {
  double momentum = 0.9;  ///< in [0, 1)
  bool nesterov = false;
  double weight_decay = 0;  ///< not negative
};

struct Compression {
  CodecPointer codec = {};  ///< none: gradients are folded as they are
  /// What a message leaves out is kept, per logical worker, and added to the next gradient (Seide
  /// et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847). Twice the bytes of the parameters in
  /// float32 per logical worker.
  bool error_feedback = true;
  CodecScope scope = CodecScope::bucket;
  /// Elements. Parameters of at most so many join a bucket, in registration order, until the bucket
  /// has more; larger ones are buckets of their own. At least 1.
  std::int64_t fusion = kDefaultFusion;
  /// The gradient of a logical worker is kept within ±clamp, element by element, before the
  /// residual is added; 0: not.
  double clamp = 0;
  /// For codecs that select, with error feedback. Twice the bytes of the parameters in float32 per
  /// logical worker more.
  std::optional<MomentumCorrection> momentum_correction = {};
  MessageFormat message_format = MessageFormat::by_size;
};

/// What options begin with. (Not `{}`: GCC 12 would warn of a codec that "may be used
/// uninitialized" where options are written in braces with a value that may throw, such as a name.)
inline Compression no_compression() { return {}; }

/// "codec topk:0.05, error feedback on, …": what decides bits.
std::string text_of(const Compression& compression);
/// InvalidArgument for numbers that make no sense.
void validate(const Compression& compression);

}  // namespace tutti
