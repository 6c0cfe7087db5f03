#pragma once

// Batches of a torch::data dataset for the shards of a Trainer, read ahead in the background:
//
//   auto data = torch::data::datasets::MNIST(folder).map(torch::data::transforms::Stack<>());
//   tutti::ShardLoader loader(std::move(data), /*batch=*/16);
//   while (trainer.epoch() < 10) {
//     trainer.run_epoch(loader, [&](tutti::Shard& shard, auto& batch) {
//       return shard.loss(loss_of(model->forward(batch.data), batch.target), batch.data.size(0));
//     });
//     trainer.evaluate(test_loader, [&](auto& batch, tutti::ShardMetrics& metrics) { … });
//   }
//
// What a shard gets are the samples of shard.indices(dataset size, batch), whoever computes it and
// however far is read ahead, which ends with the epoch. libtorch's data loader does the reading:
// each of its threads has a copy of the dataset.
//
// Threads: one. Failure: InvalidArgument; an exception of the dataset is rethrown by next() for the
// batch that it concerns.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/error.h"
#include "tutti/sample_order.h"
#include "tutti/share.h"
#include "tutti/trainer.h"

namespace tutti {

namespace detail {

/// Workers that wait for one another are still told so at once, although this thread runs.
void mark_reader_thread();

/// Tensors on their way to a device, by pinned memory and beside the program. Any thread.
class BatchSender {
 public:
  explicit BatchSender(torch::Device device);
  ~BatchSender();
  BatchSender(const BatchSender&) = delete;
  BatchSender& operator=(const BatchSender&) = delete;
  /// Sends them: each becomes one of the device.
  std::shared_ptr<void> send(const std::vector<torch::Tensor*>& tensors);
  /// What the calling thread queues there from now on sees what was sent by that call.
  void arrive(const std::shared_ptr<void>& sent, const std::vector<torch::Tensor*>& tensors);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

template <class T>
inline constexpr bool is_example = false;
template <class Data, class Target>
inline constexpr bool is_example<torch::data::Example<Data, Target>> = true;
template <class T>
inline constexpr bool is_pair = false;
template <class First, class Second>
inline constexpr bool is_pair<std::pair<First, Second>> = true;
template <class T>
inline constexpr bool is_vector = false;
template <class Part>
inline constexpr bool is_vector<std::vector<Part>> = true;

/// The tensors of a batch: of itself, of an Example, of a pair or a vector of those. False where it
/// is, or has, something else.
template <class Batch>
bool list_tensors(Batch& batch, std::vector<torch::Tensor*>& list) {
  if constexpr (std::is_same_v<Batch, torch::Tensor>) {
    if (batch.defined()) list.push_back(&batch);
    return true;
  } else if constexpr (is_example<Batch>) {
    bool all = list_tensors(batch.data, list);
    if constexpr (requires { batch.target; }) all = list_tensors(batch.target, list) && all;
    return all;
  } else if constexpr (is_pair<Batch>) {
    return list_tensors(batch.first, list) && list_tensors(batch.second, list);
  } else if constexpr (is_vector<Batch>) {
    bool all = true;
    for (auto& part : batch) all = list_tensors(part, list) && all;
    return all;
  } else {
    return false;
  }
}

}  // namespace detail

struct LoaderOptions {
  /// Batches to have ready or under way; 0: each is read when it is asked for.
  std::int64_t prefetch = 2;
  std::int64_t threads = 1;
  /// Where the model is: batches come there beside the program, by pinned memory, once they are
  /// read, so that `prefetch` of them take room there. Of batches that are tensors, Examples of
  /// them, or vectors or pairs of those; else InvalidArgument.
  torch::Device device = torch::kCPU;
};

/// `Dataset` is one of torch::data's stateless ones with a known size, mapped to batches or not.
template <class Dataset>
class ShardLoader {
 public:
  using Batch = typename Dataset::BatchType;
  using Samples = std::vector<std::int64_t>;

  /// `batch` samples per shard. InvalidArgument for one below 1, a negative prefetch, threads below
  /// 1, and a dataset without a size.
  ShardLoader(Dataset dataset, std::int64_t batch, const LoaderOptions& options = {})
      : dataset_(std::move(dataset)), batch_(batch), options_(options) {
    if (batch_ < 1) throw InvalidArgument("ShardLoader: a batch has at least 1 sample");
    if (options_.prefetch < 0) throw InvalidArgument("ShardLoader: prefetch must not be negative");
    if (options_.threads < 1) throw InvalidArgument("ShardLoader: it takes at least 1 thread");
    const auto size = dataset_.size();
    if (!size) throw InvalidArgument("ShardLoader: the dataset does not know its size");
    size_ = static_cast<std::int64_t>(*size);
    if (!options_.device.is_cpu()) {
      sender_ = std::make_shared<detail::BatchSender>(options_.device);
    }
  }

  std::int64_t dataset_size() const { return size_; }
  /// Samples per shard.
  std::int64_t batch() const { return batch_; }

  /// The shard's batch; nothing where it has no samples. Once per shard. InvalidArgument for a
  /// dataset that draws from torch's generator, unless prefetch is 0: what it drew would depend on
  /// when it is read.
  std::optional<Batch> next(Shard& shard) {
    const auto samples = shard.indices(size_, batch_);
    if (samples.empty()) return {};
    if (shard.is_audit()) return options_.prefetch == 0 ? read(samples) : read_alone(samples);
    return read_in_turn(samples, [&]() -> Coming {
      return [next = shard.coming_indices(size_, batch_)] {
        auto coming = next();
        while (coming && coming->empty()) coming = next();
        return coming.value_or(Samples());
      };
    });
  }

  /// What Trainer::evaluate() does over this loader.
  template <class OfBatch>
  Metrics evaluate(Trainer& trainer, const OfBatch& compute) {
    const auto end = share_of(epoch_steps(size_, batch_), trainer.group()).second;
    const auto compute_batch = [&](const Samples& samples, ShardMetrics& metrics) {
      auto batch = read_in_turn(samples, [&]() -> Coming {
        return [this, end, at = samples.front() / batch_]() mutable {
          Samples coming;
          if (++at >= end) return coming;
          for (auto s = at * batch_; s < std::min(size_, (at + 1) * batch_); ++s) {
            coming.push_back(s);
          }
          return coming;
        };
      });
      compute(batch, metrics);
    };
    ahead_.reset();
    auto metrics = trainer.evaluate(size_, batch_, compute_batch);
    ahead_.reset();
    return metrics;
  }

  /// The batch of these samples, read now, by this thread. What was being read ahead is given up:
  /// copies of a dataset may share what two threads cannot use at a time.
  Batch read(const Samples& samples) {
    ahead_.reset();
    const std::vector<std::size_t> indices(samples.begin(), samples.end());
    return arrived(sent(dataset_.get_batch(indices), sender_.get()));
  }

 private:
  /// A batch, and what tells that it has come to the device; null on the host.
  struct Sent {
    Batch batch;
    std::shared_ptr<void> on_its_way;
  };
  static Sent sent(Batch batch, detail::BatchSender* sender) {
    std::vector<torch::Tensor*> tensors;
    if (sender == nullptr) return {std::move(batch), nullptr};
    if (!detail::list_tensors(batch, tensors)) {
      throw InvalidArgument(
          "ShardLoader: batches of this type have tensors that it does not know: leave "
          "LoaderOptions::device out, and send them in the closure");
    }
    auto on_its_way = sender->send(tensors);
    return {std::move(batch), std::move(on_its_way)};
  }
  Batch arrived(Sent sent) {
    std::vector<torch::Tensor*> tensors;
    if (sent.on_its_way) {
      detail::list_tensors(sent.batch, tensors);
      sender_->arrive(sent.on_its_way, tensors);
    }
    return std::move(sent.batch);
  }

  /// The samples of each batch that comes; none at the end.
  using Coming = std::function<Samples()>;

  /// Gives libtorch's loader the samples of the coming batches, and keeps note of what it gave.
  class Sampler : public torch::data::samplers::Sampler<> {
   public:
    Sampler(Coming coming, std::deque<Samples>& asked)
        : coming_(std::move(coming)), asked_(&asked) {}
    void reset(std::optional<std::size_t> = {}) override {}
    std::optional<std::vector<std::size_t>> next(std::size_t) override {
      const Samples samples = coming_();
      if (samples.empty()) return {};
      asked_->push_back(samples);
      return std::vector<std::size_t>(samples.begin(), samples.end());
    }
    void save(torch::serialize::OutputArchive&) const override {}
    void load(torch::serialize::InputArchive&) override {}

   private:
    Coming coming_;
    std::deque<Samples>* asked_;
  };

  /// The data set as read by threads that will never use a job.
  class Aside : public torch::data::datasets::BatchDataset<Aside, Sent,
                                                           typename Dataset::BatchRequestType> {
   public:
    Aside(const Dataset& dataset, std::shared_ptr<detail::BatchSender> sender)
        : dataset_(dataset), sender_(std::move(sender)) {}
    Sent get_batch(typename Dataset::BatchRequestType request) override {
      detail::mark_reader_thread();
      return sent(dataset_.get_batch(std::move(request)), sender_.get());
    }
    std::optional<std::size_t> size() const override { return dataset_.size(); }

   private:
    Dataset dataset_;
    std::shared_ptr<detail::BatchSender> sender_;
  };

  /// Batches under way, in the order of the shards.
  struct Ahead {
    Ahead(const Dataset& dataset, std::shared_ptr<detail::BatchSender> sender, Coming coming,
          const LoaderOptions& options)
        : loader(Aside(dataset, std::move(sender)), Sampler(std::move(coming), asked),
                 torch::data::DataLoaderOptions()
                     .workers(static_cast<std::size_t>(options.threads))
                     .max_jobs(static_cast<std::size_t>(options.prefetch))),
          at(loader.begin()) {}
    std::deque<Samples> asked;
    torch::data::StatelessDataLoader<Aside, Sampler> loader;
    torch::data::Iterator<Sent> at;
    bool first = true;
  };

  /// As read ahead, where that is what was expected; else now, and the coming ones are begun.
  Batch read_in_turn(const Samples& samples, const std::function<Coming()>& coming) {
    if (options_.prefetch == 0) return read(samples);
    if (ahead_ && !ahead_->asked.empty() && ahead_->asked.front() == samples) return await();
    // The first batch, or the run stands elsewhere than expected: after a load, a failed step.
    auto batch = read_alone(samples);
    ahead_ = std::make_unique<Ahead>(dataset_, sender_, coming(), options_);
    return batch;
  }

  Batch read_alone(const Samples& samples) {
    const auto generator = at::detail::getDefaultCPUGenerator();
    const auto before = generator.get_state();
    auto batch = read(samples);
    if (!torch::equal(before, generator.get_state())) {
      throw InvalidArgument(
          "ShardLoader: the dataset draws from torch's generator; read it with prefetch 0, or let "
          "its random numbers depend on the sample's index");
    }
    return batch;
  }

  Batch await() {
    try {
      if (!std::exchange(ahead_->first, false)) ++ahead_->at;
      ahead_->asked.pop_front();
      return arrived(std::move(*ahead_->at));
    } catch (const torch::data::WorkerException& error) {
      ahead_.reset();
      std::rethrow_exception(error.original_exception);
    }
  }

  Dataset dataset_;
  std::int64_t batch_;
  LoaderOptions options_;
  std::int64_t size_ = 0;
  std::shared_ptr<detail::BatchSender> sender_;  ///< null where batches stay on the host
  std::unique_ptr<Ahead> ahead_;
};

namespace detail {
/// What a step does with each shard. Keeps references.
template <class Dataset, class OfBatch>
auto over_batches(ShardLoader<Dataset>& loader, const OfBatch& compute) {
  return [&](Shard& shard) {
    auto batch = loader.next(shard);
    detail::require_answer<decltype(compute(shard, *batch))>();
    return batch ? compute(shard, *batch) : shard.nothing();
  };
}
}  // namespace detail

template <class Dataset, class OfBatch>
StepResult Trainer::step(ShardLoader<Dataset>& loader, const OfBatch& compute) {
  return step(detail::over_batches(loader, compute));
}

template <class Dataset, class OfBatch>
StepResult Trainer::step(const torch::nn::Module& active, ShardLoader<Dataset>& loader,
                         const OfBatch& compute) {
  return step(active, detail::over_batches(loader, compute));
}

template <class Dataset, class OfBatch>
StepResult Trainer::run_epoch(ShardLoader<Dataset>& loader, const OfBatch& compute,
                              const std::function<void(const StepResult& result)>& after) {
  for (;;) {
    auto result = step(loader, compute);
    if (after) after(result);
    if (result.ends_epoch) return result;
  }
}

template <class Dataset, class OfBatch>
Metrics Trainer::evaluate(ShardLoader<Dataset>& loader, const OfBatch& compute) {
  return loader.evaluate(*this, compute);
}

}  // namespace tutti
