#include "kernels/fold_update.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/block_fold.h"

namespace tutti {
namespace {

/// A piece of a folded gradient takes an eighth of a usual first-level cache, through which the
/// nodes and the state stream at the same time. Its fixed cost does not show at this length.
constexpr std::size_t kPieceBytes = std::size_t{4} * 1024;

std::byte* at(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

void check(const FoldUpdate& work) {
  const auto& [fold, target, by, rounded, rounded_type] = work;
  TUTTI_CHECK(fold.destinations.empty(), "fold and update with {} destinations of the gradient",
              fold.destinations.size());
  TUTTI_CHECK(target.gradient == nullptr, "fold and update with a gradient beside the fold");
  TUTTI_CHECK(fold.count == target.count, "fold of {} and update of {} elements", fold.count,
              target.count);
  TUTTI_CHECK(fold.source_type == target.dtype && fold.result_type == target.dtype,
              "fold of {} to {} and update of {}", name_of(fold.source_type),
              name_of(fold.result_type), name_of(target.dtype));
  TUTTI_CHECK(rounded == nullptr || (target.dtype == DType::float32 && is_floating(rounded_type) &&
                                     size_of(rounded_type) == 2),
              "{} rounded to {}", name_of(target.dtype), name_of(rounded_type));
}

/// One fold and update, resolved.
class Sweep {
 public:
  explicit Sweep(const FoldUpdate& work)
      : work_(work), fold_(work.fold), size_(size_of(work.target.dtype)) {}

  /// Elements [begin, begin + count), at most a piece.
  void run(std::size_t begin, std::size_t count) const {
    alignas(64) std::byte folded[kPieceBytes];
    void* const destination = folded;
    std::array<const void*, kMaxSources> sources;
    std::ranges::transform(work_.fold.sources, sources.begin(),
                           [&](const void* p) { return at(p, begin * size_); });
    UpdateTarget piece = work_.target;
    piece.count = static_cast<std::int64_t>(count);
    if (fold_.copies()) {
      piece.gradient = sources[0];
    } else {
      fold_.run({sources.data(), work_.fold.sources.size()}, {&destination, 1}, count);
      piece.gradient = folded;
    }
    const auto skip = [&](void*& stream) {
      if (stream != nullptr) stream = at(stream, begin * size_);
    };
    skip(piece.parameter);
    std::ranges::for_each(piece.states, skip);
    update(work_.update, piece);
    if (work_.rounded == nullptr) return;
    round_into(at(work_.rounded, begin * size_of(work_.rounded_type)), work_.rounded_type,
               piece.parameter, DType::float32, piece.count);
  }

 private:
  const FoldUpdate& work_;
  BlockFold fold_;
  std::size_t size_;
};

}  // namespace

void fold_update(const FoldUpdate& work) {
  check(work);
  const Sweep sweep(work);
  const auto count = static_cast<std::size_t>(work.target.count);
  const std::size_t room = kPieceBytes / size_of(work.target.dtype);
  for (std::size_t begin = 0; begin < count; begin += room) {
    sweep.run(begin, std::min(room, count - begin));
  }
}

}  // namespace tutti
