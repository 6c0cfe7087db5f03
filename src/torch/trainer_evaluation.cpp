// Evaluation with a Trainer: a data set's metrics, and the averaged parameters.

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <iterator>
#include <numeric>

#include "base/exception_text.h"
#include "run/leaf_seed.h"
#include "run/metric_exchange.h"
#include "sync/gather_bytes.h"
#include "torch/trainer_state.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti {
namespace {

/// Without gradients, in eval(), while this lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modules_(module.modules()) {
    for (const auto& each : modules_) trained_.push_back(each->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    // Parents come first: what they say of their children, the children correct.
    for (std::size_t m = 0; m < modules_.size(); ++m) modules_[m]->train(trained_[m]);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  const torch::NoGradGuard no_grad_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> trained_;
};

enum class Says : std::uint8_t { metrics, failed };

std::vector<std::byte> message_of(const std::vector<ShardMetrics>& batches) {
  std::vector<std::byte> message(1 + packed_size(batches));
  message[0] = static_cast<std::byte>(Says::metrics);
  pack(batches, std::span(message).subspan(1));
  return message;
}

std::vector<std::byte> message_of(const std::string& failure) {
  std::vector<std::byte> message(1 + failure.size());
  message[0] = static_cast<std::byte>(Says::failed);
  std::memcpy(message.data() + 1, failure.data(), failure.size());
  return message;
}

}  // namespace

/// The batches that this worker computes.
std::vector<ShardMetrics> TrainerState::evaluate_own(const DataRequest& request,
                                                     const Trainer::Evaluate& compute) {
  const EvaluationMode mode(module_);
  const auto batches = (request.dataset_size + request.batch - 1) / request.batch;
  const auto [begin, end] = share_of(batches, group_);
  std::vector<ShardMetrics> metrics;
  for (auto b = begin; b < end; ++b) {
    torch::manual_seed(leaf_seed(options_.seed, 0, b));
    const auto first = b * request.batch;
    std::vector<std::int64_t> samples(
        static_cast<std::size_t>(std::min(request.batch, request.dataset_size - first)));
    std::iota(samples.begin(), samples.end(), first);
    compute(samples, metrics.emplace_back());
  }
  return metrics;
}

Metrics TrainerState::evaluate(const DataRequest& request, const Trainer::Evaluate& compute) {
  if (accumulated_) throw BadInput("evaluate() between accumulate() and apply()");
  if (request.dataset_size < 1 || request.batch < 1) {
    throw BadInput(fmt::format("evaluate(): {} samples in batches of {}", request.dataset_size,
                               request.batch));
  }
  std::vector<std::byte> message;
  std::exception_ptr error;
  try {
    message = message_of(evaluate_own(request, compute));
  } catch (...) {
    error = std::current_exception();
    message = message_of(exception_text());
  }
  seed_between_steps();
  const auto all = gather_bytes(group_, message, waits("evaluate()"));
  if (error) std::rethrow_exception(error);
  std::vector<ShardMetrics> batches;
  for (int r = 0; r < group_.size(); ++r) {
    const auto said = std::span(all[static_cast<std::size_t>(r)]);
    const auto rest = said.subspan(1);
    if (said[0] == static_cast<std::byte>(Says::failed)) {
      throw PeerFailed(
          group_.job_rank(r), steps_,
          fmt::format("evaluate(): rank {} failed: {}", group_.job_rank(r),
                      std::string_view(reinterpret_cast<const char*>(rest.data()), rest.size())));
    }
    auto theirs = unpack(rest);
    batches.insert(batches.end(), std::make_move_iterator(theirs.begin()),
                   std::make_move_iterator(theirs.end()));
  }
  return reduce(batches);
}

void TrainerState::with_averages(const std::function<void()>& body) {
  constexpr const char* kName = "with_averages()";
  require_between_steps(kName);
  if (!averages_) throw BadInput("with_averages() without options.average");
  if (averages_->steps() == 0) throw BadInput("with_averages() before the first step");
  require_untouched();
  group_.barrier(waits(kName));
  averages_->swap_in();
  group_.barrier(waits(kName));
  parameters_->written();
  averaged_ = true;
  std::exception_ptr error;
  try {
    body();
    parameters_->require_untouched();
  } catch (...) {
    error = std::current_exception();
  }
  averaged_ = false;
  group_.barrier(waits(kName));
  averages_->swap_out();
  group_.barrier(waits(kName));
  parameters_->written();
  if (error) std::rethrow_exception(error);
}

}  // namespace tutti
