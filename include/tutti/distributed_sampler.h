#pragma once

// The samples of each worker of a DataParallel, for libtorch's data loader:
//
//   tutti::DistributedSampler sampler(parallel.group(), *dataset.size(), {.batch = 64, .seed = 1});
//   auto loader = torch::data::make_data_loader(std::move(dataset), std::move(sampler),
//                                               torch::data::DataLoaderOptions().workers(2));
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (auto& batch : *loader) { …; loss.backward(); update(); }  // another order each time
//     parallel.join(update);  // what follows each backward: the optimizer's step, zero_grad()
//   }
//
// `batch` is the global one. Each worker gets its share of the batch's samples in rank order, and
// the shares differ by one sample at most: 64 on 3 workers are 22, 21 and 21 (weigh them:
// parallel.next_weight(batch.data.size(0))). Where an epoch's last batch has fewer samples than
// there are workers, those of the highest ranks have one batch less than the others: join()
// answers for them.
//
// Threads: one. Failure: InvalidArgument; Mismatch where workers differ in size or options.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/group.h"
#include "tutti/sample_order.h"

namespace tutti {

struct DistributedSamplerOptions {
  std::int64_t batch = 0;        ///< samples of a step, of all workers together
  std::uint64_t seed = 0;        ///< of the order
  SampleOrder order = {};        ///< shuffled, anew in each epoch, unless said otherwise
  bool drop_last = false;        ///< leave out an epoch's last batch where it is not a whole one
  std::int64_t first_epoch = 0;  ///< of a program that resumes from files of its own
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Deals the samples 0 … dataset_size−1. InvalidArgument for a batch or size below 1, and where
  /// drop_last would leave nothing. Collective.
  DistributedSampler(const Group& group, std::int64_t dataset_size,
                     const DistributedSamplerOptions& options);

  /// Copies share one position, also those of a sampler that was moved: the one that a data loader
  /// took, and the program's own.
  DistributedSampler(const DistributedSampler&) = default;
  DistributedSampler& operator=(const DistributedSampler&) = default;

  /// Begins the next epoch, the first one in its first call: a data loader calls it whenever it
  /// is iterated over.
  void reset(std::optional<std::size_t> new_dataset_size = {}) override;
  /// This worker's samples of the next batch; nothing at the epoch's end. The data loader's own
  /// batch_size is to be left alone (1): InvalidArgument for another one, which would not be the
  /// size of anything.
  std::optional<std::vector<std::size_t>> next(std::size_t loader_batch_size) override;

  /// Epochs that were begun before this one, `first_epoch` included.
  std::int64_t epoch() const { return at_->epoch; }
  /// The steps of this epoch, which all workers take together.
  std::int64_t batches() const;

  /// The epoch's number and how far it has come. Between two loops over a data loader: inside one,
  /// the loader's threads have taken more than the program.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void begin_epoch();

  DistributedSamplerOptions options_;
  int rank_;
  int workers_;
  std::int64_t dataset_size_;
  /// Shared by all copies: the one in the data loader moves on, the program's own tells of it.
  struct Position {
    std::int64_t epoch = 0;
    bool begun = false;                 ///< reset() was called
    std::vector<std::int64_t> samples;  ///< of the epoch
    std::int64_t taken = 0;             ///< of them, by all workers
  };
  std::shared_ptr<Position> at_ = std::make_shared<Position>();
};

}  // namespace tutti
