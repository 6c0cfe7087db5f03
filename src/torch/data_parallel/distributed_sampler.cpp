#include "tutti/distributed_sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/hash.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti {

DistributedSampler::DistributedSampler(const Group& group, std::int64_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : options_(options), rank_(group.rank()), workers_(group.size()), dataset_size_(dataset_size) {
  at_->epoch = options.first_epoch;
  if (options_.batch < 1 || dataset_size_ < 1 || at_->epoch < 0) {
    throw InvalidArgument(fmt::format(
        "DistributedSampler: batches of {} out of {} samples from epoch {} on: batch (of all "
        "workers together) and size must be 1 or more",
        options_.batch, dataset_size_, at_->epoch));
  }
  const auto& text = options_.order.text();
  const std::int64_t mine[] = {dataset_size_,
                               options_.batch,
                               static_cast<std::int64_t>(options_.seed),
                               options_.drop_last ? 1 : 0,
                               at_->epoch,
                               static_cast<std::int64_t>(digest(text.data(), text.size()))};
  constexpr const char* kNames[] = {"data set size", "batch",       "seed",
                                    "drop_last",     "first_epoch", "order"};
  constexpr std::int64_t kCount = std::size(kNames);
  std::vector<std::int64_t> all(static_cast<std::size_t>(kCount * workers_));
  group.all_gather({mine, kCount, DType::int64}, {all.data(), kCount * workers_, DType::int64},
                   {.label = "distributed sampler"});
  for (std::int64_t k = 0; k < kCount * workers_; ++k) {
    if (all[static_cast<std::size_t>(k)] == all[static_cast<std::size_t>(k % kCount)]) continue;
    throw Mismatch(fmt::format("DistributedSampler: rank {} has another {} than rank {}",
                               group.job_rank(static_cast<int>(k / kCount)), kNames[k % kCount],
                               group.job_rank(0)));
  }
  begin_epoch();
}

/// Looks into the epoch's samples at once, so that what cannot be served is refused by reset() and
/// not in a thread of the loader's.
void DistributedSampler::begin_epoch() {
  at_->samples = options_.order.of_epoch(dataset_size_, options_.seed, at_->epoch);
  at_->taken = 0;
  if (!options_.drop_last) return;
  const auto size = static_cast<std::int64_t>(at_->samples.size());
  if (size < options_.batch) {
    throw InvalidArgument(fmt::format(
        "DistributedSampler: an epoch of {} samples has no whole batch of {}, and drop_last leaves "
        "out all others",
        size, options_.batch));
  }
  at_->samples.resize(static_cast<std::size_t>(size - size % options_.batch));
}

std::int64_t DistributedSampler::batches() const {
  return epoch_steps(static_cast<std::int64_t>(at_->samples.size()), options_.batch);
}

void DistributedSampler::reset(std::optional<std::size_t> new_dataset_size) {
  if (at_->begun) ++at_->epoch;
  at_->begun = true;
  if (new_dataset_size) dataset_size_ = static_cast<std::int64_t>(*new_dataset_size);
  begin_epoch();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t loader_batch_size) {
  if (loader_batch_size != 1) {
    throw InvalidArgument(fmt::format(
        "DistributedSampler: the data loader has a batch_size of {} of its own: leave it alone; "
        "DistributedSamplerOptions::batch is that of all workers together ({})",
        loader_batch_size, options_.batch));
  }
  at_->begun = true;
  const auto size = static_cast<std::int64_t>(at_->samples.size());
  const auto count = std::min(options_.batch, size - at_->taken);
  const auto [begin, end] = share_of(count, rank_, workers_);
  const auto first = at_->samples.begin() + at_->taken;
  at_->taken += count;
  if (begin == end) return {};
  return std::vector<std::size_t>(first + begin, first + end);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write(
      "position",
      torch::tensor({at_->epoch, at_->taken, std::int64_t{at_->begun ? 1 : 0}}, torch::kInt64),
      /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  auto position = torch::empty({3}, torch::kInt64);
  archive.read("position", position, /*is_buffer=*/true);
  at_->epoch = position[0].item<std::int64_t>();
  begin_epoch();
  at_->taken = position[1].item<std::int64_t>();
  at_->begun = position[2].item<std::int64_t>() != 0;
}

}  // namespace tutti
