#include "kernels/block_fold.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

/// Beyond as many destinations, lines at equal offsets from a page would evict one another from an
/// 8-way first-level cache; a block is then folded once and copied to one destination at a time.
constexpr std::size_t kMaxStreams = 8;

/// Room for intermediate values: half of a usual first-level cache.
constexpr std::size_t kStackBytes = 16 * 1024;

std::byte* at(void* data, std::size_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

/// The fold whose parts BlockFold's members are made of.
const Fold& checked(const Fold& work) {
  TUTTI_CHECK(work.program != nullptr, "fold without a program");
  TUTTI_CHECK(static_cast<std::size_t>(work.program->sources()) == work.sources.size(),
              "a program over {} sources was given {}", work.program->sources(),
              work.sources.size());
  TUTTI_CHECK(work.sources.size() <= kMaxSources && work.destinations.size() <= kMaxSources,
              "fold of {} sources to {} destinations, at most {} of each", work.sources.size(),
              work.destinations.size(), kMaxSources);
  TUTTI_CHECK(work.count >= 0, "fold of {} elements", work.count);
  TUTTI_CHECK(is_defined(work.reduction, work.result_type), "{} of {}", name_of(work.reduction),
              name_of(work.result_type));
  const bool rounds = work.source_type == DType::float32 && is_floating(work.result_type) &&
                      size_of(work.result_type) == 2;
  TUTTI_CHECK(work.source_type == work.result_type || rounds, "fold of {} to {}",
              name_of(work.source_type), name_of(work.result_type));
  TUTTI_CHECK(work.divisor == 1.0 || is_floating(work.result_type), "division of {} by {}",
              name_of(work.result_type), work.divisor);
  return work;
}

}  // namespace

BlockFold::BlockFold(const Fold& work)
    : kernels_(fold_kernels(checked(work).source_type, work.result_type, work.reduction)),
      schedule_(*work.program, kernels_.widest),
      divisor_(work.divisor),
      source_size_(size_of(work.source_type)),
      result_size_(size_of(work.result_type)),
      copies_(work.sources.size() == 1 && work.divisor == 1.0 &&
              work.source_type == work.result_type) {
  TUTTI_CHECK(kernels_.lanes * kernels_.value_size <= kMaxVectorBytes, "vectors of {} bytes",
              kernels_.lanes * kernels_.value_size);
}

void BlockFold::run(std::span<const void* const> sources, std::span<void* const> destinations,
                    std::size_t count) const {
  if (copies_) return copy(sources[0], destinations, count);
  const std::size_t rest = count % kernels_.lanes;
  const std::size_t body = count - rest;
  if (body > 0) run_vectors(sources, destinations, body);
  if (rest > 0) run_rest(sources, destinations, body, rest);
}

void BlockFold::run_vectors(std::span<const void* const> sources,
                            std::span<void* const> destinations, std::size_t count) const {
  alignas(64) std::byte values[kStackBytes];
  alignas(64) std::byte folded[kStackBytes];
  const bool copies = destinations.size() > kMaxStreams;
  const bool whole = schedule_.pieces().size() == 1 && !copies;
  const std::size_t room = kStackBytes / kernels_.value_size / schedule_.depth();
  const std::size_t block = whole ? count : room / kernels_.lanes * kernels_.lanes;

  std::array<const void*, kMaxSources> from;
  std::array<void*, kMaxSources> to;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    std::ranges::transform(sources, from.begin(),
                           [&](const void* p) { return at(p, begin * source_size_); });
    std::ranges::transform(destinations, to.begin(),
                           [&](void* p) { return at(p, begin * result_size_); });
    const std::span<void* const> all(to.data(), destinations.size());
    if (!copies) {
      run_block(from.data(), all, n, values, block);
      continue;
    }
    void* const once = folded;
    run_block(from.data(), {&once, 1}, n, values, block);
    for (void* const destination : all) std::memcpy(destination, folded, n * result_size_);
  }
}

void BlockFold::run_block(const void* const* sources, std::span<void* const> to, std::size_t count,
                          std::byte* values, std::size_t block) const {
  std::array<const void*, kMaxSources> stack;
  std::size_t height = 0;
  const auto pieces = schedule_.pieces();
  for (const std::uint8_t leaves : pieces.first(pieces.size() - 1)) {
    const bool combines = leaves == FoldSchedule::kCombine;
    if (combines) height -= 2;
    void* const value = at(values, height * block * kernels_.value_size);
    if (combines) {
      kernels_.value_to_value(&stack[height], {&value, 1}, count, 1.0);
      stack[height++] = value;
    } else if (leaves == 1 && kernels_.sources_are_values) {
      stack[height++] = *sources++;
    } else {
      kernels_.source_to_value[leaves](sources, {&value, 1}, count, 1.0);
      stack[height++] = value;
      sources += leaves;
    }
  }
  if (pieces.back() == FoldSchedule::kCombine) {
    kernels_.value_to_result(stack.data(), to, count, divisor_);
  } else {
    kernels_.source_to_result[pieces.back()](sources, to, count, divisor_);
  }
}

void BlockFold::run_rest(std::span<const void* const> sources, std::span<void* const> destinations,
                         std::size_t begin, std::size_t rest) const {
  alignas(64) std::byte padded[kMaxSources * kMaxVectorBytes];
  alignas(64) std::byte folded[kMaxVectorBytes];
  std::array<const void*, kMaxSources> from;
  for (std::size_t k = 0; k < sources.size(); ++k) {
    std::byte* const copy = padded + k * kMaxVectorBytes;
    std::memset(copy, 0, kMaxVectorBytes);
    std::memcpy(copy, at(sources[k], begin * source_size_), rest * source_size_);
    from[k] = copy;
  }
  void* const to = folded;
  run_vectors({from.data(), sources.size()}, {&to, 1}, kernels_.lanes);
  for (void* const destination : destinations) {
    std::memcpy(at(destination, begin * result_size_), folded, rest * result_size_);
  }
}

void BlockFold::copy(const void* source, std::span<void* const> destinations,
                     std::size_t count) const {
  constexpr std::size_t kBlock = 16 * 1024;
  const std::size_t bytes = count * source_size_;
  for (std::size_t begin = 0; begin < bytes; begin += kBlock) {
    const std::size_t n = std::min(kBlock, bytes - begin);
    for (void* const to : destinations) {
      if (to != source) std::memcpy(at(to, begin), at(source, begin), n);
    }
  }
}

void fold(const Fold& work) {
  const BlockFold resolved(work);
  if (work.count == 0 || work.destinations.empty()) return;
  resolved.run(work.sources, work.destinations, static_cast<std::size_t>(work.count));
}

void round_into(void* to, DType to_type, const void* from, DType from_type, std::int64_t count) {
  static const auto one = FoldProgram::canonical(1);
  fold({.program = &one,
        .source_type = from_type,
        .result_type = to_type,
        .sources = {&from, 1},
        .destinations = {&to, 1},
        .count = count});
}

}  // namespace tutti
