#include "sync/step/first_look.h"

#include <fmt/format.h>

#include <utility>

#include "base/log_line.h"
#include "comm/group_state.h"
#include "kernels/fold.h"
#include "kernels/hash.h"

namespace tutti {
namespace {

/// torch draws the seed of an unseeded generator from 53 bits; people choose smaller ones.
constexpr std::uint64_t kGreatestByHand = std::uint64_t{1} << 32;

}  // namespace

void FirstLook::generator(std::uint64_t seed, std::uint64_t state) const {
  auto& notes = header(group_.rank()).first_look;
  notes.generator_seed = seed;
  notes.generator_state = state;
}

void FirstLook::add(std::int64_t leaf, std::size_t parameter, const void* values,
                    std::size_t bytes) {
  const auto seed = static_cast<std::uint64_t>(leaf) << 32 | parameter;
  if (!all_zero(values, bytes)) sum_ += digest(values, bytes, seed);
}

void FirstLook::publish() const {
  auto& notes = header(group_.rank()).first_look;
  if (looks_) notes.gradient = sum_;
  if (looks_at_rows_) notes.rows = rows_;
}

void FirstLook::compare(std::int64_t number) {
  if (group_.rank() != 0) return;
  if (looks_ && !same_data_said_) compare_gradients(number);
  if (looks_ && !std::exchange(generators_compared_, true)) compare_generators();
  if (looks_at_rows_ && !rows_said_) compare_rows(number);
}

void FirstLook::compare_gradients(std::int64_t number) {
  const auto gradient = header(0).first_look.gradient;
  if (gradient == 0) return;
  for (int r = 1; r < group_.size(); ++r) {
    if (header(r).first_look.gradient != gradient) return;
  }
  same_data_said_ = true;
  log_warning(fmt::format(
      "step {} of \"{}\": all workers computed the same gradient: each does the others' work. "
      "Where all have the same data, as with a RandomSampler and one seed, give each its own "
      "part: DistributedSampler, share_of(), or, where no data set and no permutation of it are "
      "drawn "
      "from it, manual_seed(seed + rank). Nothing is wrong where "
      "the loss has no data (a penalty on the parameters) or constants alone. Where gradients are "
      "NaN, look at the loss",
      number, name_));
}

void FirstLook::compare_rows(std::int64_t number) {
  const auto first = header(0).first_look.rows;
  if (first == 0) return;
  int unlike = 0;
  for (int r = 1; r < group_.size(); ++r) {
    const auto other = header(r).first_look.rows;
    if (other == 0) return;
    if (unlike == 0 && other != first) unlike = r;
  }
  if (unlike == 0) return;
  rows_said_ = true;
  const auto rows_of = [&](int rank) { return header(rank).first_look.rows - 1; };
  log_warning(fmt::format(
      "step {} of \"{}\": the loss is of {} rows on rank {}, of {} on rank {}, and each worker's "
      "loss counts alike: where it is a mean over rows, the gradient is not that of all rows "
      "together. "
      "Call next_weight(rows) before each backward; next_weight(1) says that losses are to count "
      "alike. Where it is a sum, set DataParallelOptions::divide",
      number, name_, rows_of(0), group_.job_rank(0), rows_of(unlike), group_.job_rank(unlike)));
}

void FirstLook::compare_generators() {
  const auto& first = header(0).first_look;
  bool same_seeds = true;
  bool same_states = true;
  bool drawn = first.generator_seed > kGreatestByHand;
  for (int r = 1; r < group_.size(); ++r) {
    const auto& other = header(r).first_look;
    same_seeds = same_seeds && other.generator_seed == first.generator_seed;
    same_states = same_states && (other.generator_state == first.generator_state ||
                                  other.generator_state == 0 || first.generator_state == 0);
    drawn = drawn || other.generator_seed > kGreatestByHand;
  }
  auto& job = group_.state()->job();
  if (!same_seeds && drawn && job.is_news("a generator that nobody seeded")) {
    log_warning(fmt::format(
        "\"{}\": torch's generator was not seeded on all workers, each has random numbers of its "
        "own, and so will the next run; call torch::manual_seed(seed), or manual_seed(seed + rank) "
        "where workers shall draw differently",
        name_));
  } else if (same_seeds && !same_states && job.is_news("generators that stand apart")) {
    log_warning(fmt::format(
        "\"{}\": torch's generator has one seed on all workers, but they have drawn different "
        "numbers of random numbers from it since; call torch::manual_seed(seed), or "
        "manual_seed(seed + rank), on all before the DataParallel is made",
        name_));
  }
}

}  // namespace tutti
