#pragma once

// In which order an epoch goes through a data set: for the shards of a Trainer
// (TrainerOptions::order) and the workers of a DataParallel (tutti/distributed_sampler.h).
//
//   tutti::SampleOrder::sequential()
//   tutti::SampleOrder::weighted(weight_of_each_sample, /*samples=*/60000)
//   tutti::SampleOrder("by length", [&](std::int64_t size, std::int64_t epoch) { return …; })
//
// A pure function of data set size, seed and epoch: each worker calls it for itself.
//
// Threads: values; calls are as safe as the user's function. Failure: InvalidArgument for numbers
// that make no sense, and for samples that are not in the data set.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

class SampleOrder {
 public:
  using Samples =
      std::function<std::vector<std::int64_t>(std::int64_t dataset_size, std::int64_t epoch)>;

  /// "shuffled": every sample once, in an order of its own for each seed and epoch.
  SampleOrder();
  static SampleOrder shuffled() { return {}; }
  /// Every sample once, 0 … size−1.
  static SampleOrder sequential();
  /// An epoch is `samples` ≥ 1 draws with replacement; sample i is drawn with the probability
  /// weights[i] / Σ weights (torch's WeightedRandomSampler). One weight per sample of the data set,
  /// finite and not negative, with a positive sum.
  static SampleOrder weighted(std::vector<double> weights, std::int64_t samples);
  /// An order of the user's own: the samples of an epoch, counted from 0, at least one, any number
  /// of times each. It must return the same on every worker and in every call; a Trainer compares
  /// what its workers have in every step. `name` stands for it
  /// in logs and checkpoints: change the name whenever the function changes.
  SampleOrder(std::string name, Samples samples);

  /// "shuffled", "sequential", "weighted, 60000 of 1000 samples, weights 89ab…", the name.
  /// Equal texts mean equal orders.
  const std::string& text() const { return text_; }

  /// The samples of an epoch ≥ 0 of a data set of dataset_size ≥ 1 samples, in order.
  std::vector<std::int64_t> of_epoch(std::int64_t dataset_size, std::uint64_t seed,
                                     std::int64_t epoch) const;
  /// How many these are; nothing where the user's function decides.
  std::optional<std::int64_t> epoch_size(std::int64_t dataset_size) const;
  bool is_sequential() const { return kind_ == Kind::sequential; }

 private:
  enum class Kind : std::uint8_t { shuffled, sequential, weighted, own };
  Kind kind_ = Kind::shuffled;
  std::string text_ = "shuffled";
  std::shared_ptr<const std::vector<double>> sums_;  ///< of the weights up to each one
  std::int64_t drawn_ = 0;
  Samples samples_;
};

/// Steps of an epoch of `samples` samples when a step takes `batch`: the last one takes what is
/// left. A Trainer's step takes shards · batch per shard.
std::int64_t epoch_steps(std::int64_t samples, std::int64_t batch);

}  // namespace tutti
