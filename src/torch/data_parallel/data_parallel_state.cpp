#include "torch/data_parallel/data_parallel_state.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "base/exception_text.h"
#include "base/log_line.h"
#include "comm/group_state.h"
#include "kernels/hash.h"
#include "memory/memory_need.h"
#include "run/leaf_seed.h"
#include "torch/data_parallel/data_parallel_settings.h"
#include "torch/model/incoming_gradient.h"
#include "torch/model/module_modes.h"
#include "torch/model/row_tensors.h"
#include "torch/model/threads.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

void require_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw InvalidArgument(fmt::format("a weight must be finite and not negative, not {}", weight));
  }
}

/// Puts torch's generator back to where it stood.
class GeneratorGuard {
 public:
  GeneratorGuard() : state_(generator_.get_state()) {}
  ~GeneratorGuard() { generator_.set_state(state_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  torch::Tensor state_;
};

std::uint64_t state_digest(const at::Generator& generator) {
  const auto state = generator.get_state();
  return digest(state.data_ptr(), state.nbytes());
}

}  // namespace

DataParallelState::DataParallelState(const Group& group, WrappedModel model,
                                     const DataParallelOptions& options)
    : group_(group), model_(std::move(model)), options_(options), memory_(model_.memory()) {
  pin_threads();
  const auto generator = at::detail::getDefaultCPUGenerator();
  generator_seed_ = generator.current_seed();
  generator_state_ = state_digest(generator);
  auto settings = settings_of(options_);
  const auto exchange_options = exchange_options_of(options_, model_);
  settings.emplace_back("modules", std::to_string(exchange_options.modules));
  exchange_ = std::make_unique<StepExchange>(group_, model_.plan(settings), exchange_options);
  std::string own;
  if (options_.compression.codec) {
    coded_ = std::make_unique<CodedGradients>(
        *exchange_, CodingOptions{.compression = options_.compression,
                                  .divisor = exchange_->nodes().divisor(),
                                  .name = options_.name,
                                  .values = [this](std::uint32_t p) -> ParameterValues {
                                    return {
                                        static_cast<const std::byte*>(model_.tensor(p).data_ptr()),
                                        exchange_->plan().parameters()[p].spec.dtype};
                                  }});
    own =
        fmt::format(", {} for messages and residuals of each worker",
                    format_bytes(coded_->bytes_per_logical_worker() + coded_->bytes_per_worker()));
  }
  exchange_->first_look().start();
  dense_ = std::make_unique<DenseGradients>(*exchange_);
  rows_ = std::make_unique<RowGradients>(*exchange_);
  if (coded_) sources_.push_back(coded_.get());
  sources_.insert(sources_.end(), {dense_.get(), rows_.get()});
  owned_ = std::make_unique<PlacedParameters>(model_, *exchange_, *rows_);
  if (!rows_->parameters().empty()) {
    own += fmt::format(", {} row-sparse parameters", rows_->parameters().size());
  }
  exchange_->number_next(options_.first_step);
  warn_of_unmatched(model_, options_.name, group_);
  if (model_.owned() > 0) own += fmt::format(", {} parameters with an owner", model_.owned());
  send_from_first_rank(group_, model_.parameters(), options_.deadline);
  send_from_first_rank(group_, model_.buffers(), options_.deadline);
  views_ = std::make_unique<GradientViews>(model_, *exchange_);
  if (coded_) {
    step_parts_.add<MessageSumsPart>(*exchange_, *coded_);
  } else {
    step_parts_.add<NodeSumsPart>(*exchange_);
  }
  step_parts_.add<SourcesPart>(sources_);
  step_parts_.add<RowTensorsPart>(model_, *exchange_, *rows_, *owned_, *views_);
  step_parts_.add(*owned_);
  step_parts_.add<ViewsPart>(*views_, *owned_);
  if (group_.rank() != 0) return;
  log_info(fmt::format("data parallel: {} parameters, {} gradient bytes per worker, {} workers{}{}",
                       model_.parameters().size(), exchange_->nodes().bytes_held(), group_.size(),
                       text_of(settings_of(options_)), own));
}

DataParallelState::~DataParallelState() { end(); }

/// Nobody waits here, and nothing is thrown: what went wrong in silence is logged.
void DataParallelState::end() noexcept {
  if (std::uncaught_exceptions() > 0 || !group_.state()->job().is_own()) return;
  try {
    if (!is_used_ && group_.rank() == 0) {
      log_warning(
          fmt::format("the DataParallel of \"{}\" has ended without a step: it has to live as long "
                      "as the model "
                      "is trained, or each worker trains a model of its own",
                      options_.name));
    }
    if (group_.size() > 1) {
      const auto notice = std::make_shared<EndedNotice>();
      notice->warning = fmt::format(
          "a backward reaches parameters of \"{}\", whose DataParallel has ended: these gradients "
          "are this worker's alone",
          options_.name);
      for (const auto& hooks : hooks_) hooks->leave(notice);
    }
    model_.require_all_in_place();
  } catch (const std::exception&) {
    return;  // the parameters are others by now
  }
  if (const auto difference = exchange_->part(memory_)) {
    log_warning(*difference +
                " as its DataParallel ended: the updates were not the same on all workers, or one "
                "has changed its model since");
  }
}

void DataParallelState::attach() {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    hooks_.push_back(
        std::make_unique<ParameterHooks>(model_.tensor(p), model_.label(p), p, weak_from_this()));
  }
}

/// Whatever leaves `body` drops the open step on all workers.
template <class Body>
void DataParallelState::in_step(Body&& body) {
  try {
    body();
  } catch (...) {
    if (exchange_->is_open()) {
      drop(exception_text());
    } else {
      dropped_ = true;  // by others
      in_scope_ = in_leaf_ = last_backward_ = false;
      step_parts_.drop();
    }
    throw;
  }
}

// ---- taking gradients ----

void DataParallelState::gradient(std::size_t parameter, const torch::Tensor& value) {
  if (!in_scope_) open_backward();
  if (in_scope_ && !in_leaf_) {
    throw InvalidArgument("a backward inside an accumulation scope belongs into micro_batch()");
  }
  require_plain(value, model_.label(parameter), model_.row_sparse(parameter));
  const bool last = !in_scope_ || last_backward_;
  if (last) {
    if (backward_ < 0) backward_ = current_backward();
    if (backward_ != current_backward() || exchange_->finished(parameter)) {
      throw Unsupported(
          fmt::format("{}: a backward inside the backward (reentrant checkpointing) reached it; "
                      "run such models "
                      "in micro_batch() with a closure that calls backward() itself",
                      model_.label(parameter)));
    }
  }
  model_.require_in_place(parameter);
  views_->release_kept(parameter);  // a closure of a scope may have kept it
  views_->require_cleared(parameter, exchange_->last_number());
  if (views_->holds_set_by_hand(parameter)) {
    take(parameter, views_->take_set_by_hand(parameter), false);
  }
  model_.tensor(parameter).mutable_grad().reset();
  take(parameter, value, last);
}

void DataParallelState::accumulated(std::size_t parameter) {
  const auto& tensor = model_.tensor(parameter);
  // torch also calls the slot when the pre-hook left it nothing to accumulate.
  if (!tensor.grad().defined()) return;
  model_.require_in_place(parameter);
  if (views_->is_view(parameter, tensor.grad())) {
    throw InvalidArgument(
        fmt::format("{} was unfrozen while it held a reduced gradient; call zero_grad() when "
                    "freezing it",
                    model_.label(parameter)));
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
        "such models in micro_batch() with a closure that calls backward() itself");
  }
  before_step();
  exchange_->open_one_backward(std::exchange(next_weight_, 1.0));
  backward_ = latest_backward_ = backward;
  on_backward_end(weak_from_this());
}

void DataParallelState::before_step() {
  is_used_ = true;
  owned_->require_sent();
  views_->release_kept();
  dropped_ = false;
  for (const auto& hooks : hooks_) hooks->attach();
}

void DataParallelState::take(std::size_t parameter, const torch::Tensor& value, bool last) {
  if (model_.row_sparse(parameter)) {
    const IncomingRows rows(value, model_.tensor(parameter), model_.label(parameter));
    exchange_->write(parameter, rows.entries(), last);
    return;
  }
  const auto laid_out = laid_out_as(views_->view(parameter), value);
  exchange_->write(parameter, laid_out.data_ptr(), last);
  if (coded_ && last) coded_->wrote(static_cast<std::uint32_t>(parameter), 1);
}

/// Gradients that no backward of this leaf produced.
bool DataParallelState::take_gradients_set_by_hand(bool last) {
  bool any = false;
  for (std::size_t p = 0; p < views_->size(); ++p) {
    if (!views_->holds_set_by_hand(p)) continue;
    views_->release_kept(p);
    take(p, views_->take_set_by_hand(p), last);
    any = true;
  }
  return any;
}

void DataParallelState::backward_ended(bool completed) {
  backward_ = -1;
  if (!exchange_->is_open() || in_scope_) return;
  if (!completed) return drop("its backward threw an exception");
  in_step([this] {
    take_gradients_set_by_hand(true);
    finish();
  });
}

// ---- steps ----

void DataParallelState::next_weight(double weight) {
  require_weight(weight);
  next_weight_ = weight;
}

void DataParallelState::open_scope(const AccumulateOptions& options) {
  if (in_scope_ || exchange_->is_open()) throw InvalidArgument("accumulation scopes do not nest");
  if (options.micro_batches && *options.micro_batches < 0) {
    throw InvalidArgument(fmt::format("accumulate: {} micro-batches", *options.micro_batches));
  }
  if (options.seed && !options.micro_batches) {
    throw InvalidArgument("accumulate: a seed needs micro_batches, by which leaves are counted");
  }
  before_step();
  exchange_->open_scope(options.micro_batches);
  in_scope_ = true;
  ++scope_;
}

void DataParallelState::run_leaf(double weight, const std::optional<std::uint64_t>& seed,
                                 const std::function<torch::Tensor()>& compute) {
  require_weight(weight);
  if (in_leaf_) throw InvalidArgument("micro_batch() does not nest");
  in_step([&] {
    std::optional<GeneratorGuard> guard;
    if (seed) {
      guard.emplace();
      torch::manual_seed(leaf_seed(*seed, exchange_->number(), exchange_->next_leaf()));
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
    in_leaf_ = false;
  });
}

void DataParallelState::finish_scope() {
  in_step([this] {
    views_->require_none_set_by_hand("outside of micro_batch()");
    in_scope_ = false;
    finish();
  });
}

void DataParallelState::finish() {
  model_.require_all_in_place();
  for (std::size_t p = 0; p < hooks_.size(); ++p) {
    if (!hooks_[p]->slot_is_ours()) {
      throw InvalidArgument(
          fmt::format("{}: its post-accumulate hook was replaced after DataParallel was made",
                      model_.label(p)));
    }
  }
  model_.require_unchanged_list();
  look_first();
  if (exchange_->looks_closely() && model_.module() != nullptr) {
    memory_.modes = modes_of(*model_.module());
  }
  // A closure of a scope may have kept one meanwhile.
  views_->release_kept();
  StepFacts step{.number = exchange_->number()};
  exchange_->arrive(memory_);
  step_parts_.judge(step);
  outcome_ = exchange_->complete([&] {
    exchange_->take_buffers(memory_);
    step_parts_.apply(step);
  });
  step.touched = outcome_.touched;
  step.report = outcome_.report;
  step_parts_.finish(step);
  outcome_.report = step.report;
  if (options_.buffers == Buffers::every_step && group_.rank() != outcome_.buffer_source) {
    for (const auto& item : model_.buffers()) item.second.unsafeGetTensorImpl()->bump_version();
  }
  if (options_.out_of_data == OutOfData::stop_all && outcome_.drained > 0) stopped_ = true;
}

/// By the end of the first backward a program has seeded torch's generator. Where it has done so
/// since this object was made, nothing is known of where it stood.
void DataParallelState::look_first() {
  if (exchange_->steps_done() != 0) return;
  const auto seed = at::detail::getDefaultCPUGenerator().current_seed();
  exchange_->first_look().generator(seed, seed == generator_seed_ ? generator_state_ : 0);
}

void DataParallelState::synchronize(std::optional<double> asked) {
  if (asked) require_weight(*asked);
  if (in_scope_)
    throw InvalidArgument("synchronize() inside an accumulation scope: call its finish()");
  bool by_hand = false;
  for (std::size_t p = 0; p < views_->size(); ++p) {
    views_->require_cleared(p, exchange_->last_number());
    by_hand = by_hand || views_->holds_set_by_hand(p);
  }
  before_step();
  const double weight = asked.value_or(std::exchange(next_weight_, 1.0));
  in_step([&] {
    if (by_hand) {
      exchange_->open_one_backward(weight);
      take_gradients_set_by_hand(true);
    } else {
      exchange_->open_without_gradient(weight, false);
    }
    finish();
  });
}

std::int64_t DataParallelState::join(const std::function<void()>& update) {
  if (in_scope_)
    throw InvalidArgument("join() inside an accumulation scope: call its finish() first");
  views_->require_none_set_by_hand("before join()");
  std::int64_t answered = 0;
  while (!stopped_) {
    before_step();
    try {
      in_step([this] {
        exchange_->open_without_gradient(0, true);
        finish();
      });
    } catch (const PeerFailed&) {
      continue;  // dropped by all: whoever has data goes on with the next
    }
    if (outcome_.drained == group_.size()) break;
    update();
    ++answered;
  }
  stopped_ = false;
  return answered;
}

void DataParallelState::fail(const std::string& why) noexcept {
  if (std::exchange(dropped_, false)) return;
  drop(why);
  dropped_ = false;
}

/// Ends the open step, or the next one, on all workers.
void DataParallelState::drop(const std::string& why) noexcept {
  in_scope_ = in_leaf_ = last_backward_ = false;
  dropped_ = true;
  exchange_->fail(why);
  step_parts_.drop();
}

void DataParallelState::collectively(const std::function<void()>& calls) {
  is_used_ = true;
  exchange_->run_collectives(calls);
}

void DataParallelState::sync_buffers() {
  is_used_ = true;
  if (model_.buffers().empty()) return;
  collectively([this] { send_from_first_rank(group_, model_.buffers(), options_.deadline); });
}

std::vector<std::string> DataParallelState::touched() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < outcome_.touched.size(); ++p) {
    if (outcome_.touched[p]) names.push_back(model_.name(p));
  }
  return names;
}

}  // namespace tutti
