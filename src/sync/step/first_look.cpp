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
  if (looks_) header(group_.rank()).first_look.gradient = sum_;
}

void FirstLook::compare(std::int64_t number) {
  if (!looks_ || group_.rank() != 0) return;
  const auto& first = header(0).first_look;
  bool same_gradients = first.gradient != 0;
  bool same_seeds = true;
  bool same_states = true;
  bool drawn = first.generator_seed > kGreatestByHand;
  for (int r = 1; r < group_.size(); ++r) {
    const auto& other = header(r).first_look;
    same_gradients = same_gradients && other.gradient == first.gradient;
    same_seeds = same_seeds && other.generator_seed == first.generator_seed;
    same_states = same_states && (other.generator_state == first.generator_state ||
                                  other.generator_state == 0 || first.generator_state == 0);
    drawn = drawn || other.generator_seed > kGreatestByHand;
  }
  if (same_gradients && !same_data_said_) {
    same_data_said_ = true;
    log_warning(fmt::format(
        "step {} of \"{}\": all workers computed the same gradient: each does the others' work. "
        "Where all have the same data, as with a RandomSampler and one seed, give each its own "
        "part: DistributedSampler, share_of(), or manual_seed(seed + rank). Nothing is wrong where "
        "the loss has no data (a penalty on the parameters) or constants alone. Where gradients "
        "are "
        "NaN, look at the loss",
        number, name_));
  }
  if (std::exchange(generators_compared_, true)) return;
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
