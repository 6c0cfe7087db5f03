#include "torch/trainer/trainer_evaluation.h"

#include <fmt/format.h>

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/error_kind.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "job/alone.h"
#include "kernels/hash.h"
#include "run/data/leaf_seed.h"
#include "run/numbers/metric_exchange.h"
#include "torch/model/resolved.h"
#include "torch/model/same_bytes.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti {

/// A model's buffers, of which each batch gets the same values, whatever a norm in train() makes of
/// them in another one; and what they are when this ends.
class KeptBuffers {
 public:
  explicit KeptBuffers(const NamedTensors& buffers) : buffers_(buffers) {
    for (const auto& item : buffers_) values_.push_back(item.second.detach().clone());
  }
  ~KeptBuffers() {
    try {
      put_back();
    } catch (...) {  // the device has failed: its next call says so
    }
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

  /// InvalidArgument where one lies elsewhere, so that it cannot be put back; `who` begins the
  /// text.
  void require_in_place(const std::string& who) const {
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      if (buffers_[b].second.nbytes() == values_[b].nbytes()) continue;
      throw InvalidArgument(
          fmt::format("{} gave buffer \"{}\" another shape or type", who, buffers_[b].first));
    }
  }
  void put_back() const {
    const torch::NoGradGuard no_grad;
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      const auto& tensor = buffers_[b].second;
      if (tensor.nbytes() != values_[b].nbytes() || same_bytes(tensor, values_[b])) continue;
      tensor.detach().copy_(values_[b]);
    }
  }
  std::uint64_t digest() const {
    std::uint64_t hash = 0;
    for (const auto& value : values_) {
      const auto bytes = on_host(value);
      hash = tutti::digest(bytes.const_data_ptr(), bytes.nbytes(), hash);
    }
    return hash;
  }

 private:
  const NamedTensors& buffers_;
  std::vector<torch::Tensor> values_;
};

namespace {

/// Without gradients, in eval(), while this lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module)
      : module_(module), trained_(module.is_training()), parts_(module.modules(false)) {
    for (const auto& part : parts_) part_trained_.push_back(part->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    // Parents come first: what they set in their children, the children correct.
    module_.train(trained_);
    for (std::size_t m = 0; m < parts_.size(); ++m) parts_[m]->train(part_trained_[m]);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  const torch::NoGradGuard no_grad_;
  torch::nn::Module& module_;  ///< may be on the stack, where torch cannot list it with its parts
  bool trained_;
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> part_trained_;
};

/// Facts about a worker's part, followed by its metrics or its failure's text.
struct Head {
  DataRequest request;
  std::size_t logical = 0;    ///< whose per-replica parameters it shows
  std::uint64_t moved = 0;    ///< digest of parameters that are not the shared ones; 0: they are
  std::uint64_t buffers = 0;  ///< digest of all
  bool failed = false;
};

std::vector<std::byte> message_of(const Head& head, const std::vector<ShardMetrics>& batches) {
  std::vector<std::byte> message;
  append(message, head);
  append_all(message, packed(batches));
  return message;
}

std::vector<std::byte> message_of(const Head& head, const std::string& failure) {
  std::vector<std::byte> message;
  append(message, head);
  append_all(message, failure);
  return message;
}

/// Digest of parameters that the program has given memory of their own since; 0 where it has not.
std::uint64_t digest_of_moved(const WrappedModel& model) {
  try {
    model.require_all_in_place();
    return 0;
  } catch (const InvalidArgument&) {
    std::uint64_t hash = 0;
    for (const auto& [name, parameter] : model.parameters()) {
      const auto values = on_host(parameter.detach()).contiguous();
      hash = digest(values.data_ptr(), values.nbytes(), hash);
    }
    return std::max<std::uint64_t>(hash, 1);
  }
}

}  // namespace

/// The batches that this worker computes.
std::vector<ShardMetrics> TrainerEvaluation::evaluate_own(const DataRequest& request,
                                                          const Trainer::Evaluate& compute,
                                                          const KeptBuffers& buffers) {
  if (request.dataset_size < 1 || request.batch < 1) {
    throw InvalidArgument(fmt::format("evaluate(): {} samples in batches of {}",
                                      request.dataset_size, request.batch));
  }
  const EvaluationMode mode(trained_.module);
  const auto who = fmt::format("evaluate() of Trainer \"{}\"", trained_.options.name);
  at::autocast::clear_cache();  // the parameters that were cast in it have changed
  const auto batches = epoch_steps(request.dataset_size, request.batch);
  const auto [begin, end] = share_of(batches, between_.group());
  std::vector<ShardMetrics> metrics;
  for (auto b = begin; b < end; ++b) {
    torch::manual_seed(leaf_seed(trained_.options.seed, 0, b));
    const auto first = b * request.batch;
    std::vector<std::int64_t> samples(
        static_cast<std::size_t>(std::min(request.batch, request.dataset_size - first)));
    std::iota(samples.begin(), samples.end(), first);
    const Alone alone(between_.group().state()->job(), who);
    trained_.parameters.run_closure(
        [&] {
          compute(samples, metrics.emplace_back());
          if (trained_.classifiers != nullptr) trained_.classifiers->end_shard();
        },
        [&] { return who; });
    buffers.require_in_place(who);
    buffers.put_back();
    trained_.module.eval();  // whatever the closure has left
  }
  return metrics;
}

/// The logical worker's copies, where other hosts have updated them.
void TrainerEvaluation::bring(std::size_t logical) {
  if (trained_.replicas == nullptr || !trained_.replicas->differ_on_hosts()) return;
  trained_.exchange.protocol().run_collectives([&] { trained_.replicas->bring(logical); });
}

Metrics TrainerEvaluation::evaluate(const DataRequest& request, const Trainer::Evaluate& compute) {
  auto& exchange = trained_.exchange;
  const auto& group = between_.group();
  exchange.protocol().require_running();
  between_.require_together("evaluate()");
  between_.require_no_half("evaluate()");
  const auto me = fmt::format("evaluate() of Trainer \"{}\"", trained_.options.name);
  const Stepping stepping(group.state()->job(), me);
  bring(0);
  const auto logical = trained_.replicas != nullptr ? trained_.replicas->shown() : 0;
  std::uint64_t moved = 0;
  std::vector<std::byte> message;
  std::uint64_t held = 0;
  std::exception_ptr error;
  try {
    const KeptBuffers buffers(trained_.model.buffers());
    moved = digest_of_moved(trained_.model);
    held = buffers.digest();
    const auto run = [&] {
      BetweenSteps::require_one_thread(me, stepping);
      if (moved == 0) trained_.parameters.require_untouched();
      message = message_of({request, logical, moved, held, false},
                           evaluate_own(request, compute, buffers));
    };
    trained_.classifiers != nullptr ? trained_.classifiers->evaluate(run) : run();
  } catch (...) {
    error = std::current_exception();
    message = message_of({request, logical, 0, 0, true}, exception_text());
  }
  seed_();
  std::vector<std::vector<std::byte>> all;
  exchange.protocol().run_collectives(
      [&] { all = gather_bytes(group, message, between_.waits("evaluate()")); });
  if (error) std::rethrow_exception(error);
  std::vector<ShardMetrics> batches;
  for (int r = 0; r < group.size(); ++r) {
    ByteReader said{all[static_cast<std::size_t>(r)]};
    const auto head = said.value<Head>();
    if (head.failed) {
      throw PeerFailed(
          group.job_rank(r), steps_,
          fmt::format("evaluate(): rank {} failed: {}", group.job_rank(r), text_of(said.left)));
    }
    if (head.request != request) {
      throw InvalidArgument(fmt::format(
          "evaluate(): rank {} has {} samples in batches of {}, rank {} has {} in batches of {}",
          group.job_rank(r), head.request.dataset_size, head.request.batch,
          group.job_rank(group.rank()), request.dataset_size, request.batch));
    }
    if (head.logical != logical) {
      throw InvalidArgument(fmt::format(
          "evaluate(): rank {} shows logical worker {}'s parameters, rank {} logical worker {}'s",
          group.job_rank(r), head.logical, group.job_rank(group.rank()), logical));
    }
    if (head.moved != moved) {
      throw InvalidArgument(fmt::format(
          "evaluate(): rank {} and rank {} have other parameters: one has moved its own (to(), "
          "load() or set_data()) and the other has not, or has other values",
          group.job_rank(r), group.job_rank(group.rank())));
    }
    if (head.buffers != held) {
      throw InvalidArgument(fmt::format(
          "evaluate(): rank {} and rank {} have other buffers: one has run the model in train() "
          "between steps, or written to them: change values inside trainer.edit(), and run the "
          "model outside of steps in eval()",
          group.job_rank(r), group.job_rank(group.rank())));
    }
    auto theirs = unpack(said.left);
    batches.insert(batches.end(), std::make_move_iterator(theirs.begin()),
                   std::make_move_iterator(theirs.end()));
  }
  return reduce(batches);
}

void TrainerEvaluation::with_ema(const std::function<void()>& body) {
  constexpr const char* kName = "with_ema()";
  between_.require_together(kName);
  auto* const averages = trained_.averages;
  const auto& group = between_.group();
  trained_.exchange.protocol().run_collectives([&] {
    between_.begin_on_all(kName, [&] {
      if (averages == nullptr) throw InvalidArgument("with_ema() without options.ema_decay");
      if (averages->steps() == 0) throw InvalidArgument("with_ema() before the first step");
      trained_.require_untouched();
    });
    averages->swap_in();
    group.barrier(between_.waits(kName));
  });
  trained_.parameters.written();
  const auto error = between_.run_inside(kName, [&] {
    body();
    trained_.parameters.require_untouched();
  });
  try {
    trained_.exchange.protocol().run_collectives([&] {
      group.barrier(between_.waits(kName));
      averages->swap_out();
      group.barrier(between_.waits(kName));
    });
  } catch (const Error&) {
    if (error) std::rethrow_exception(error);  // it came first
    throw;
  }
  auto spoiled = trained_.parameters.spoiled();  // an average is, by an evaluation in there
  trained_.parameters.written();
  trained_.parameters.spoil(std::move(spoiled));
  if (error) std::rethrow_exception(error);
}

torch::Tensor TrainerEvaluation::gather(const std::string& name) const {
  between_.require("gather()");
  const auto p = trained_.parameter_of(name);
  if (trained_.model.is_per_replica(p)) {
    if (trained_.replicas->differ_on_hosts()) {
      trained_.exchange.protocol().run_collectives([&] { trained_.replicas->bring(); });
    }
    return trained_.replicas->gather(p);
  }
  return trained_.model.tensor(p).detach().clone().unsqueeze(0);
}

void TrainerEvaluation::with_logical_worker(std::int64_t logical,
                                            const std::function<void()>& body) {
  constexpr const char* kName = "with_logical_worker()";
  between_.require_together(kName);
  between_.require(kName);
  auto* const replicas = trained_.replicas;
  const auto count = replicas != nullptr ? replicas->size() : 0;
  if (logical < 0 || logical >= static_cast<std::int64_t>(count)) {
    throw InvalidArgument(
        fmt::format("with_logical_worker({}): {}", logical,
                    count == 0 ? std::string("nothing is per replica")
                               : fmt::format("there are logical workers 0 to {}", count - 1)));
  }
  trained_.require_untouched();
  const auto l = static_cast<std::size_t>(logical);
  bring(l);
  replicas->show(l);
  trained_.buffers.restore(l);
  const auto error = between_.run_inside(kName, [&] {
    body();
    trained_.parameters.require_untouched();
    trained_.buffers.require_untouched(l);
  });
  replicas->show(0);
  trained_.buffers.restore();
  if (error) std::rethrow_exception(error);
}

}  // namespace tutti
