#include "tutti/data_parallel.h"

#include "torch/data_parallel_settings.h"
#include "torch/data_parallel_state.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// `group_of` is called once all is known to make sense: until then nobody waits for this worker.
template <class GroupOf>
std::shared_ptr<DataParallelState> make(const GroupOf& group_of, WrappedModel model,
                                        const DataParallelOptions& options) {
  require_options(options);
  const Group group = group_of();
  auto state = std::make_shared<DataParallelState>(group, std::move(model), options);
  state->attach();
  return state;
}

Kinds kinds_of(const DataParallelOptions& options) {
  return {
      .exclude = options.exclude, .row_sparse = options.row_sparse, .is_private = {}, .owner = {}};
}

}  // namespace

DataParallel::DataParallel(const Job& job, torch::nn::Module& module,
                           const DataParallelOptions& options)
    : state_(make([&] { return Group(job, options.name); }, WrappedModel(module, kinds_of(options)),
                  options)) {}

DataParallel::DataParallel(const Group& group, torch::nn::Module& module,
                           const DataParallelOptions& options)
    : state_(make([&] { return group; }, WrappedModel(module, kinds_of(options)), options)) {}

DataParallel::DataParallel(const Group& group,
                           std::vector<std::pair<std::string, torch::Tensor>> parameters,
                           const DataParallelOptions& options)
    : state_(make([&] { return group; }, WrappedModel(std::move(parameters), kinds_of(options)),
                  options)) {}

DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;

void DataParallel::next_weight(double weight) { state_->next_weight(weight); }

Accumulation DataParallel::accumulate(const AccumulateOptions& options) {
  state_->open_scope(options);
  return {state_, options};
}

void DataParallel::synchronize(std::optional<double> weight) { state_->synchronize(weight); }
std::int64_t DataParallel::drain(const std::function<void()>& update) {
  return state_->drain(update);
}
bool DataParallel::stopped() const { return state_->stopped(); }
void DataParallel::fail(const std::string& why) { state_->fail(why); }
void DataParallel::sync_buffers() { state_->sync_buffers(); }
std::vector<std::string> DataParallel::touched() const { return state_->touched(); }
const StepReport& DataParallel::report() const { return state_->report(); }
TrafficReport DataParallel::traffic() const { return state_->traffic(); }
std::size_t DataParallel::bytes_held() const { return state_->exchange().bytes_held(); }
const Group& DataParallel::group() const { return state_->group(); }

Accumulation::Accumulation(std::shared_ptr<DataParallelState> state,
                           const AccumulateOptions& options)
    : state_(std::move(state)),
      scope_(state_->scope()),
      options_(options),
      exceptions_at_start_(std::uncaught_exceptions()) {}

Accumulation::Accumulation(Accumulation&& other) noexcept = default;

Accumulation::~Accumulation() noexcept(false) {
  if (!is_open()) return;
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    state_->fail("an exception left its accumulation scope");
    return;
  }
  state_->fail("it left an accumulation scope without finish()");
  throw BadInput("an accumulation scope was left without finish(): its gradients are lost");
}

bool Accumulation::is_open() const { return state_ && state_->scope() == scope_; }

void Accumulation::require_open(const char* what) const {
  if (is_open()) return;
  throw BadInput(std::string(what) +
                 " after the accumulation scope has ended, or its step was dropped");
}

void Accumulation::run(double weight, const std::function<torch::Tensor()>& compute) {
  require_open("micro_batch()");
  state_->run_leaf(weight, options_.seed, compute);
}

void Accumulation::finish() {
  require_open("finish()");
  state_->finish_scope();
}

}  // namespace tutti
