#include "tutti/data_parallel.h"

#include "torch/data_parallel_state.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::shared_ptr<DataParallelState> make(const Group& group, WrappedModel model,
                                        const DataParallelOptions& options) {
  auto state = std::make_shared<DataParallelState>(group, std::move(model), options);
  state->attach();
  return state;
}

}  // namespace

DataParallel::DataParallel(const Job& job, torch::nn::Module& module,
                           const DataParallelOptions& options)
    : DataParallel(Group(job, options.name), module, options) {}

DataParallel::DataParallel(const Group& group, torch::nn::Module& module,
                           const DataParallelOptions& options)
    : state_(make(group, WrappedModel(module, options.exclude), options)) {}

DataParallel::DataParallel(const Group& group,
                           std::vector<std::pair<std::string, torch::Tensor>> parameters,
                           const DataParallelOptions& options)
    : state_(make(group, WrappedModel(std::move(parameters), options.exclude), options)) {}

DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;

void DataParallel::next_weight(double weight) { state_->next_weight(weight); }

Accumulation DataParallel::accumulate(const AccumulateOptions& options) {
  state_->open_scope(options);
  return {state_, options};
}

void DataParallel::synchronize(double weight) { state_->synchronize(weight); }
std::int64_t DataParallel::drain() { return state_->drain(); }
bool DataParallel::stopped() const { return state_->stopped(); }
void DataParallel::fail(const std::string& why) { state_->fail(why); }
void DataParallel::sync_buffers() { state_->sync_buffers(); }
std::vector<std::string> DataParallel::touched() const { return state_->touched(); }
const StepReport& DataParallel::report() const { return state_->report(); }
std::size_t DataParallel::bytes_held() const { return state_->exchange().bytes_held(); }
const Group& DataParallel::group() const { return state_->group(); }

Accumulation::Accumulation(std::shared_ptr<DataParallelState> state,
                           const AccumulateOptions& options)
    : state_(std::move(state)),
      options_(options),
      exceptions_at_start_(std::uncaught_exceptions()) {}

Accumulation::Accumulation(Accumulation&& other) noexcept = default;

Accumulation::~Accumulation() noexcept(false) {
  if (!state_) return;
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    state_->fail("an exception left its accumulation scope");
    return;
  }
  state_->fail("it left an accumulation scope without finish()");
  throw BadInput("an accumulation scope was left without finish(): its gradients are lost");
}

void Accumulation::run(double weight, const std::function<torch::Tensor()>& compute) {
  if (!state_) throw BadInput("micro_batch() after the accumulation scope has ended");
  try {
    state_->run_leaf(weight, options_.seed, compute);
  } catch (...) {
    if (!state_->in_scope()) state_.reset();
    throw;
  }
}

void Accumulation::finish() {
  if (!state_) throw BadInput("finish() after the accumulation scope has ended");
  const auto state = std::exchange(state_, nullptr);
  state->finish_scope();
}

}  // namespace tutti
