#include "torch/data_parallel_state.h"

#include <fmt/format.h>

#include <cmath>

#include "base/log_line.h"
#include "base/timeline.h"
#include "kernels/fold.h"
#include "kernels/hash.h"
#include "tutti/environment.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

Divisor divisor_of(Divide divide) {
  switch (divide) {
    case Divide::by_weight:
      return Divisor::weights;
    case Divide::by_contributors:
      return Divisor::contributors;
    case Divide::not_at_all:
      return Divisor::none;
  }
  return Divisor::weights;
}

std::string_view name_of(Divide divide) {
  switch (divide) {
    case Divide::by_weight:
      return "by weight";
    case Divide::by_contributors:
      return "by contributors";
    case Divide::not_at_all:
      return "not at all";
  }
  return "";
}

std::string_view name_of(Buffers buffers) {
  switch (buffers) {
    case Buffers::every_step:
      return "every step";
    case Buffers::on_request:
      return "on request";
    case Buffers::never:
      return "never";
  }
  return "";
}

/// What besides the model has to be the same on all workers.
std::vector<std::pair<std::string, std::string>> settings_of(const DataParallelOptions& options) {
  return {{"name", options.name},
          {"torch", TORCH_VERSION},
          {"intra-op threads", std::to_string(at::get_num_threads())},
          {"divide", std::string(name_of(options.divide))},
          {"buffers", std::string(name_of(options.buffers))},
          {"out_of_data", options.out_of_data == OutOfData::answer ? "answer" : "stop all"},
          {"bucket_bytes", std::to_string(options.bucket_bytes)},
          {"first_bucket_bytes", std::to_string(options.first_bucket_bytes)},
          {"digest_every", std::to_string(options.digest_every)}};
}

void require_options(const DataParallelOptions& options) {
  if (options.bucket_bytes == 0 || options.first_bucket_bytes == 0) {
    throw BadInput("bucket_bytes and first_bucket_bytes must be at least 1");
  }
  if (options.digest_every < 0) throw BadInput("digest_every must not be negative");
  if (options.deadline && options.deadline->count() <= 0) {
    throw BadInput("the deadline must be positive");
  }
}

void require_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw BadInput(fmt::format("a weight must be finite and not negative, not {}", weight));
  }
}

std::shared_ptr<Timeline> timeline_of(const Group& group) {
  const auto file = Environment::read().profile;
  if (file.empty()) return nullptr;
  return std::make_shared<Timeline>(file, group.rank(), group.size());
}

std::uint64_t leaf_seed(std::uint64_t seed, std::int64_t step, std::int64_t leaf) {
  const std::uint64_t words[] = {seed, static_cast<std::uint64_t>(step),
                                 static_cast<std::uint64_t>(leaf)};
  return digest(words, sizeof words);
}

}  // namespace

DataParallelState::DataParallelState(const Group& group, WrappedModel model,
                                     const DataParallelOptions& options)
    : group_(group), model_(std::move(model)), options_(options), memory_(model_.memory()) {
  require_options(options_);
  exchange_ = std::make_unique<StepExchange>(
      group_, model_.plan(settings_of(options_)),
      ExchangeOptions{.name = options_.name,
                      .divisor = divisor_of(options_.divide),
                      .bucket_bytes = options_.bucket_bytes,
                      .first_bucket_bytes = options_.first_bucket_bytes,
                      .sync_buffers = options_.buffers == Buffers::every_step,
                      .digest_every = options_.digest_every,
                      .deadline = options_.deadline,
                      .timeline = timeline_of(group_)});
  send_initial_state();
  make_gradient_views(exchange_->arena());
  log_info(fmt::format(
      "\"{}\": {} parameters, {} gradient bytes per worker, {} workers, divide {}, buffers {}, "
      "digests every {} steps",
      options_.name, model_.parameters().size(), exchange_->bytes_held(), group_.size(),
      name_of(options_.divide), name_of(options_.buffers), options_.digest_every));
}

DataParallelState::~DataParallelState() = default;

void DataParallelState::attach() {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    hooks_.push_back(
        std::make_unique<ParameterHooks>(model_.tensor(p), model_.name(p), p, weak_from_this()));
  }
}

void DataParallelState::send_initial_state() {
  for (const auto* tensors : {&model_.parameters(), &model_.buffers()}) {
    for (const auto& [name, tensor] : *tensors) {
      group_.broadcast(
          {tensor.data_ptr(), static_cast<std::int64_t>(tensor.nbytes()), DType::uint8}, 0,
          {.label = name, .deadline = options_.deadline});
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void DataParallelState::make_gradient_views(const SharedMemory& arena) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& parameter = model_.tensor(p);
    views_.push_back(torch::from_blob(
        exchange_->result(p), parameter.sizes(), parameter.strides(), [arena](void*) {},
        parameter.options().requires_grad(false)));
    view_versions_.push_back(0);
  }
}

// ---- taking gradients ----

void DataParallelState::gradient(std::size_t parameter, const torch::Tensor& value) {
  if (!in_scope_) open_backward();
  if (in_scope_ && !in_leaf_) {
    throw BadInput("a backward inside an accumulation scope belongs into micro_batch()");
  }
  const auto& name = model_.name(parameter);
  if (value.layout() != torch::kStrided) {
    throw Unsupported(fmt::format(
        "parameter \"{}\" has a sparse gradient; build the layer with sparse=false", name));
  }
  if (torch::GradMode::is_enabled() || value.requires_grad()) {
    throw Unsupported(fmt::format(
        "parameter \"{}\": a gradient made with create_graph cannot be reduced; use "
        "torch::autograd::grad for the inner derivative and a plain backward for the last",
        name));
  }
  const bool last = !in_scope_ || last_backward_;
  if (last) {
    if (backward_ < 0) backward_ = current_backward();
    if (backward_ != current_backward() || exchange_->finished(parameter)) {
      throw Unsupported(fmt::format(
          "parameter \"{}\": a backward inside the backward (reentrant checkpointing) reached it; "
          "run such models in micro_batch() with a closure that calls backward() itself",
          name));
    }
  }
  model_.require_in_place(parameter);
  if (holds_own_gradient(parameter)) take(parameter, model_.tensor(parameter).grad(), false);
  model_.tensor(parameter).mutable_grad().reset();
  take(parameter, value, last);
}

void DataParallelState::accumulated(std::size_t parameter) {
  const auto& tensor = model_.tensor(parameter);
  // torch also calls the slot when the pre-hook left it nothing to accumulate.
  if (!tensor.grad().defined()) return;
  model_.require_in_place(parameter);
  if (is_view(parameter, tensor.grad())) {
    throw BadInput(
        fmt::format("parameter \"{}\" was unfrozen while it held a reduced gradient; call "
                    "zero_grad() when freezing it",
                    model_.name(parameter)));
  }
  const auto value = tensor.grad();
  tensor.mutable_grad().reset();
  hooks_[parameter]->attach();
  gradient(parameter, value);
}

/// The first gradient of a backward outside any scope opens its step.
void DataParallelState::open_backward() {
  const int backward = current_backward();
  if (exchange_->is_open()) return;
  if (backward < latest_backward_) {
    throw Unsupported(
        "a backward inside the backward (reentrant checkpointing) has already synchronised; run "
        "such "
        "models in micro_batch() with a closure that calls backward() itself");
  }
  before_step();
  exchange_->open_single(std::exchange(next_weight_, 1.0));
  backward_ = latest_backward_ = backward;
  on_backward_end(weak_from_this());
}

void DataParallelState::before_step() {
  for (const auto& hooks : hooks_) hooks->attach();
}

void DataParallelState::take(std::size_t parameter, const torch::Tensor& value, bool last) {
  const auto& view = views_[parameter];
  if (value.strides() == view.strides() && value.is_non_overlapping_and_dense()) {
    exchange_->write(parameter, value.data_ptr(), last);
    return;
  }
  // Another layout: elements must meet those of the other workers, which lie as the parameter does.
  const auto dense = torch::empty_strided(view.sizes(), view.strides(), view.options());
  dense.copy_(value);
  exchange_->write(parameter, dense.data_ptr(), last);
}

/// zero_grad(false) puts a detached alias in place of what it zeroes, so memory decides.
bool DataParallelState::is_view(std::size_t parameter, const torch::Tensor& grad) const {
  const auto& view = views_[parameter];
  return grad.is_same(view) || (grad.layout() == torch::kStrided && grad.numel() > 0 &&
                                grad.data_ptr() == view.data_ptr() && grad.numel() == view.numel());
}

/// After a sync param.grad is our view. Whatever else is found there later was put there by hand;
/// our view itself may only have been zeroed.
bool DataParallelState::holds_own_gradient(std::size_t parameter) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined()) return false;
  if (!is_view(parameter, grad)) return true;
  const bool written = grad._version() != view_versions_[parameter];
  if (written && all_zero(grad.data_ptr(), grad.nbytes())) return false;
  throw BadInput(
      fmt::format("parameter \"{}\" still holds the reduced gradient of step {}: call zero_grad() "
                  "before the next "
                  "backward, or run several backwards of one step in accumulate()",
                  model_.name(parameter), exchange_->steps_done()));
}

/// Gradients that no backward of this leaf produced.
bool DataParallelState::take_gradients_set_by_hand(bool last) {
  bool any = false;
  for (std::size_t p = 0; p < views_.size(); ++p) {
    const auto& tensor = model_.tensor(p);
    const auto& grad = tensor.grad();
    if (!grad.defined() || is_view(p, grad)) continue;
    if (grad.layout() != torch::kStrided) {
      throw Unsupported(fmt::format("parameter \"{}\" has a sparse gradient", model_.name(p)));
    }
    if (grad.requires_grad()) {
      throw Unsupported(fmt::format("parameter \"{}\": its gradient carries a graph (create_graph)",
                                    model_.name(p)));
    }
    const auto value = grad;
    tensor.mutable_grad().reset();
    take(p, value, last);
    any = true;
  }
  return any;
}

void DataParallelState::backward_ended(bool completed) {
  backward_ = -1;
  if (!exchange_->is_open() || in_scope_) return;
  if (!completed) {
    fail("its backward threw an exception");
    return;
  }
  take_gradients_set_by_hand(true);
  finish();
}

// ---- steps ----

void DataParallelState::next_weight(double weight) {
  require_weight(weight);
  next_weight_ = weight;
}

void DataParallelState::open_scope(const AccumulateOptions& options) {
  if (in_scope_ || exchange_->is_open()) throw BadInput("accumulation scopes do not nest");
  if (options.micro_batches && *options.micro_batches < 0) {
    throw BadInput(fmt::format("accumulate: {} micro-batches", *options.micro_batches));
  }
  if (options.seed && !options.micro_batches) {
    throw BadInput("accumulate: a seed needs micro_batches, by which leaves are counted");
  }
  before_step();
  exchange_->open_scope(options.micro_batches);
  in_scope_ = true;
}

void DataParallelState::run_leaf(double weight, const std::optional<std::uint64_t>& seed,
                                 const std::function<torch::Tensor()>& compute) {
  require_weight(weight);
  if (in_leaf_) throw BadInput("micro_batch() does not nest");
  const auto leave = [this] { in_leaf_ = last_backward_ = false; };
  try {
    if (seed) {
      torch::manual_seed(leaf_seed(*seed, exchange_->steps_done() + 1, exchange_->next_leaf()));
    }
    exchange_->begin_leaf(weight);
    in_leaf_ = true;
    const auto loss = compute();
    if (loss.defined()) {
      backward_ = -1;
      last_backward_ = true;
      loss.backward();
      last_backward_ = false;
    }
    take_gradients_set_by_hand(false);
    exchange_->end_leaf();
    leave();
  } catch (const std::exception& error) {
    leave();
    in_scope_ = false;
    if (exchange_->is_open()) fail(error.what());
    drop_gradients();
    throw;
  }
}

void DataParallelState::finish_scope() {
  in_scope_ = false;
  finish();
}

void DataParallelState::finish() {
  try {
    const auto step = static_cast<std::int64_t>(exchange_->steps_done()) + 1;
    model_.require_all_in_place();
    for (std::size_t p = 0; p < hooks_.size(); ++p) {
      if (!hooks_[p]->slot_is_ours()) {
        throw BadInput(fmt::format(
            "parameter \"{}\": its post-accumulate hook was replaced after DataParallel was made",
            model_.name(p)));
      }
    }
    if (step == 1 || (options_.digest_every > 0 && step % options_.digest_every == 0)) {
      model_.require_unchanged_list();
    }
    outcome_ = exchange_->finish(memory_);
  } catch (const std::exception& error) {
    if (exchange_->is_open()) fail(error.what());
    drop_gradients();
    throw;
  }
  install_gradients();
  if (options_.out_of_data == OutOfData::stop_all && outcome_.drained > 0) stopped_ = true;
}

void DataParallelState::install_gradients() {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    auto& grad = model_.tensor(p).mutable_grad();
    if (outcome_.touched[p]) {
      views_[p].unsafeGetTensorImpl()->bump_version();
      view_versions_[p] = static_cast<std::int64_t>(views_[p]._version());
      grad = views_[p];
    } else {
      grad.reset();
    }
  }
  if (options_.buffers == Buffers::every_step && group_.rank() != 0) {
    for (const auto& item : model_.buffers()) item.second.unsafeGetTensorImpl()->bump_version();
  }
}

void DataParallelState::drop_gradients() noexcept {
  for (std::size_t p = 0; p < views_.size(); ++p) model_.tensor(p).mutable_grad().reset();
}

void DataParallelState::synchronize(double weight) {
  require_weight(weight);
  if (in_scope_) throw BadInput("synchronize() inside an accumulation scope: call its finish()");
  bool by_hand = false;
  for (std::size_t p = 0; p < views_.size(); ++p) {
    const auto& grad = model_.tensor(p).grad();
    by_hand = by_hand || (grad.defined() && !is_view(p, grad));
  }
  before_step();
  if (by_hand) {
    exchange_->open_single(weight);
    take_gradients_set_by_hand(true);
  } else {
    exchange_->open_joined(weight, false);
  }
  finish();
}

std::int64_t DataParallelState::drain() {
  if (in_scope_) throw BadInput("drain() inside an accumulation scope: call its finish() first");
  std::int64_t answered = 0;
  while (!stopped_) {
    exchange_->open_joined(0, true);
    finish();
    if (outcome_.drained == group_.size()) break;
    ++answered;
  }
  return answered;
}

void DataParallelState::fail(const std::string& why) noexcept {
  in_scope_ = false;
  exchange_->fail(why);
  drop_gradients();
}

void DataParallelState::sync_buffers() {
  for (const auto& [name, tensor] : model_.buffers()) {
    group_.broadcast({tensor.data_ptr(), static_cast<std::int64_t>(tensor.nbytes()), DType::uint8},
                     0, {.label = name, .deadline = options_.deadline});
    if (group_.rank() != 0) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

std::vector<std::string> DataParallelState::touched() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < outcome_.touched.size(); ++p) {
    if (outcome_.touched[p]) names.push_back(model_.name(p));
  }
  return names;
}

}  // namespace tutti
