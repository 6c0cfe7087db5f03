#include "sync/coded/message_sum.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/fold.h"
#include "kernels/fold_schedule.h"
#include "kernels/wide_fold.h"
#include "sync/plan/tile_share.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxTerms = 64;
/// Lists with more entries than this part of the elements are no quicker than arrays.
constexpr std::size_t kDenser = 4;
/// Bounds the memory: many lists have very many subsets.
constexpr std::size_t kMaxPrograms = 4096;

std::size_t place_of(std::span<const std::uint32_t> indices, std::int64_t index) {
  return static_cast<std::size_t>(std::lower_bound(indices.begin(), indices.end(), index) -
                                  indices.begin());
}

std::vector<Block> places(std::span<const SumTerm> terms, std::uint64_t present) {
  std::vector<Block> blocks;
  for (std::size_t k = 0; k < terms.size(); ++k) {
    if ((present >> k & 1) != 0) blocks.push_back(terms[k].place);
  }
  return blocks;
}

}  // namespace

MessageSum::MessageSum(const Codec& codec, std::int64_t leaves)
    : codec_(codec), leaves_(leaves), present_(static_cast<std::size_t>(kTile)) {}

void MessageSum::take(std::span<const SumTerm> terms, std::int64_t begin, std::span<float> to) {
  if (!take_lists(terms, begin, to)) take_arrays(terms, begin, to);
}

/// Returns false where some messages are arrays, or have so many entries that merging would not
/// pay.
bool MessageSum::take_lists(std::span<const SumTerm> terms, std::int64_t begin,
                            std::span<float> to) {
  if (terms.size() > kMaxTerms) return false;
  lists_.clear();
  std::size_t entries = 0;
  for (const auto& term : terms) {
    const auto list = codec_.list_of(term.message);
    if (!list) return false;
    const auto first = place_of(list->indices, term.first + begin);
    const auto last =
        place_of(list->indices, term.first + begin + static_cast<std::int64_t>(to.size()));
    lists_.push_back(
        {list->indices.subspan(first, last - first), list->values.subspan(first, last - first)});
    entries += last - first;
  }
  if (entries * kDenser > to.size()) return false;
  std::fill(to.begin(), to.end(), -0.0f);
  shared_.clear();
  for (std::size_t k = 0; k < terms.size(); ++k) {
    const auto share = static_cast<float>(terms[k].share);
    for (std::size_t e = 0; e < lists_[k].indices.size(); ++e) {
      const auto i = static_cast<std::uint32_t>(lists_[k].indices[e] - (terms[k].first + begin));
      if (std::has_single_bit(present_[i])) shared_.push_back(i);
      present_[i] |= std::uint64_t{1} << k;
      to[i] = lists_[k].values[e] * share;
    }
  }
  for (const auto i : shared_) to[i] = fold_entries(terms, present_[i], begin + i);
  for (std::size_t k = 0; k < terms.size(); ++k) {
    for (const auto index : lists_[k].indices) {
      present_[static_cast<std::size_t>(index - (terms[k].first + begin))] = 0;
    }
  }
  return true;
}

/// Adds up one element that several lists contain.
float MessageSum::fold_entries(std::span<const SumTerm> terms, std::uint64_t present,
                               std::int64_t element) {
  std::array<float, kMaxTerms> stack;
  std::size_t depth = 0;
  std::size_t k = 0;
  for (const auto step : program_of(terms, present).steps()) {
    if (step == FoldProgram::Step::combine) {
      stack[depth - 2] += stack[depth - 1];
      --depth;
      continue;
    }
    while ((present >> k & 1) == 0) ++k;
    const auto& list = lists_[k];
    stack[depth++] = list.values[place_of(list.indices, terms[k].first + element)] *
                     static_cast<float>(terms[k].share);
    ++k;
  }
  return stack[0];
}

void MessageSum::take_arrays(std::span<const SumTerm> terms, std::int64_t begin,
                             std::span<float> to) {
  const auto count = static_cast<std::int64_t>(to.size());
  tiles_.resize(terms.size() * static_cast<std::size_t>(kTile));
  std::vector<const void*> sources;
  std::vector<Block> blocks;
  for (std::size_t k = 0; k < terms.size(); ++k) {
    const std::span<float> tile(tiles_.data() + k * static_cast<std::size_t>(kTile), to.size());
    codec_.decode(terms[k].message, terms[k].context, terms[k].first + begin, tile);
    scale_into(tile.data(), DType::float32, tile.data(), DType::float32, count, terms[k].share);
    sources.push_back(tile.data());
    blocks.push_back(terms[k].place);
  }
  void* const destination = to.data();
  Fold work{.sources = sources, .destinations = {&destination, 1}, .count = count};
  if (terms.size() > kMaxSources) return wide_fold(blocks, leaves_, work);
  work.program = &program_of(terms, ~std::uint64_t{0});
  fold(work);
}

const FoldProgram& MessageSum::program_of(std::span<const SumTerm> terms, std::uint64_t present) {
  const auto blocks = places(terms, present);
  std::vector<std::int64_t> leaves;
  for (const auto& block : blocks) leaves.push_back(block.begin);
  const auto found = programs_.find(leaves);
  if (found != programs_.end()) return found->second;
  if (programs_.size() >= kMaxPrograms) programs_.clear();
  return programs_.emplace(std::move(leaves), FoldProgram::of_blocks(blocks, leaves_))
      .first->second;
}

}  // namespace tutti
