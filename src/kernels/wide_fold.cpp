#include "kernels/wide_fold.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/check.h"
#include "kernels/fold_schedule.h"

namespace tutti {
namespace {

constexpr std::int64_t kWidePiece = 4096;  // elements

const FoldProgram& pair() {
  static const FoldProgram two = FoldProgram::canonical(2);
  return two;
}

/// A subtree: few enough sources for one program, or the sum of two.
class Part {
 public:
  /// Blocks in leaves [begin, begin + leaves); their sources start at `first`. A piece of
  /// intermediate values takes `value_bytes`.
  Part(std::span<const Block> blocks, std::int64_t begin, std::int64_t leaves, std::size_t first,
       std::size_t value_bytes)
      : first_(first), sources_(blocks.size()) {
    if (blocks.size() <= kMaxSources) {
      std::vector<Block> own(blocks.begin(), blocks.end());
      for (auto& block : own) block.begin -= begin;
      program_ = std::make_unique<FoldProgram>(FoldProgram::of_blocks(own, leaves));
      return;
    }
    const auto half =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(leaves)) / 2);
    const auto split = static_cast<std::size_t>(
        std::lower_bound(blocks.begin(), blocks.end(), begin + half,
                         [](const Block& block, std::int64_t at) { return block.begin < at; }) -
        blocks.begin());
    if (split > 0) add(blocks.first(split), begin, half, first, value_bytes);
    if (split < blocks.size()) {
      add(blocks.subspan(split), begin + half, leaves - half, first + split, value_bytes);
    }
  }

  /// `work.sources` are those of the whole; at most a piece of elements.
  void run(Fold work) const {
    if (program_) {
      work.program = program_.get();
      work.sources = work.sources.subspan(first_, sources_);
      return fold(work);
    }
    if (halves_.size() == 1) return halves_[0].run(work);
    const void* values[2] = {};
    for (std::size_t h = 0; h < 2; ++h) {
      void* const value = values_[h].get();
      Fold half = work;
      half.result_type = work.source_type;
      half.divisor = 1;
      half.destinations = {&value, 1};
      halves_[h].run(half);
      values[h] = value;
    }
    work.program = &pair();
    work.sources = values;
    fold(work);
  }

 private:
  void add(std::span<const Block> blocks, std::int64_t begin, std::int64_t leaves,
           std::size_t first, std::size_t value_bytes) {
    halves_.emplace_back(blocks, begin, leaves, first, value_bytes);
    values_.push_back(std::make_unique<std::byte[]>(value_bytes));
  }

  std::size_t first_;
  std::size_t sources_;
  std::unique_ptr<FoldProgram> program_;
  std::vector<Part> halves_;
  std::vector<std::unique_ptr<std::byte[]>> values_;
};

}  // namespace

void wide_fold(std::span<const Block> present, std::int64_t total, const Fold& work) {
  TUTTI_CHECK(present.size() == work.sources.size() && !present.empty(), "{} blocks, {} sources",
              present.size(), work.sources.size());
  const auto elements = static_cast<std::size_t>(std::min(kWidePiece, work.count));
  const Part whole(present, 0, total, 0, elements * size_of(work.source_type));
  std::vector<const void*> from(work.sources.size());
  std::vector<void*> to(work.destinations.size());
  for (std::int64_t begin = 0; begin < work.count; begin += kWidePiece) {
    const auto skip = [&](DType type) { return static_cast<std::size_t>(begin) * size_of(type); };
    std::ranges::transform(work.sources, from.begin(), [&](const void* p) {
      return static_cast<const std::byte*>(p) + skip(work.source_type);
    });
    std::ranges::transform(work.destinations, to.begin(), [&](void* p) {
      return static_cast<std::byte*>(p) + skip(work.result_type);
    });
    Fold piece = work;
    piece.sources = from;
    piece.destinations = to;
    piece.count = std::min(kWidePiece, work.count - begin);
    whole.run(piece);
  }
}

}  // namespace tutti
