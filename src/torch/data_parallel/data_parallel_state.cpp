#include "torch/data_parallel/data_parallel_state.h"

#include <fmt/format.h>

#include <exception>

#include "base/error_kind.h"
#include "comm/group_state.h"
#include "job/alone.h"
#include "run/data/leaf_seed.h"
#include "torch/model/batch_rows.h"
#include "torch/model/loss_weight.h"
#include "torch/model/random_state.h"
#include "tutti/error.h"

namespace tutti {

DataParallelState::~DataParallelState() {
  watch_.settle();
  watch_.leave();
  own_.end(is_used_);
}

/// Whatever leaves `body` drops the open step on all workers.
template <class Body>
void DataParallelState::in_step(Body&& body) {
  try {
    body();
  } catch (...) {
    if (own_.exchange->protocol().is_open()) {
      drop(exception_text());
    } else {  // by others
      forget_step();
    }
    backwards_.end_leaf();
    told_ = {own_.exchange->protocol().last_number(), std::current_exception()};
    throw;
  }
}

// ---- taking gradients ----

void DataParallelState::gradient(std::size_t parameter, const torch::Tensor& value) {
  const auto works = watch_.hooked();
  if (backwards_.is_given_up()) return;
  if (!backwards_.in_scope()) open_backward();
  if (backwards_.in_scope() && !backwards_.in_leaf()) {
    throw InvalidArgument("a backward inside an accumulation scope belongs into micro_batch()");
  }
  if (const auto replicated = own_.model.parameters().size(); parameter >= replicated) {
    return own_.split->take(parameter - replicated, value, own_.exchange->protocol().number());
  }
  own_.gradients->check(parameter, value);
  const bool last = backwards_.is_last();
  if (last &&
      (!backwards_.is_current(current_backward()) || own_.exchange->leaves().finished(parameter))) {
    throw Unsupported(
        fmt::format("{}: a backward inside the backward (reentrant checkpointing) reached it; "
                    "run such models "
                    "in micro_batch() with a closure that calls backward() itself",
                    own_.model.label(parameter)));
  }
  if (own_.weights->current() == 0 && owes() && !is_zero(value)) {
    refuse(fmt::format(
        "{}: this worker's loss has a weight of 0, but other workers' losses have a gradient of "
        "what it gave to {}, and through it of this parameter; leave all weights at 1, and "
        "multiply each worker's loss by its rows · N ÷ all rows",
        own_.model.label(parameter), own_.weights->owed_by()));
  }
  own_.gradients->take(parameter, value, last);
}

void DataParallelState::accumulated(std::size_t parameter) {
  const auto works = watch_.hooked();
  if (parameter < own_.model.parameters().size()) own_.gradients->require_accumulated(parameter);
  const auto value = own_.hooked.take_accumulated(parameter);
  if (value.defined()) gradient(parameter, value);
}

/// The first gradient of a backward outside any scope opens its step.
void DataParallelState::open_backward() {
  const int backward = current_backward();
  if (own_.exchange->protocol().is_open()) return;
  if (!backwards_.may_open(backward)) {
    throw Unsupported(
        "a backward inside the backward (reentrant checkpointing) has already synchronised; run "
        "such models in micro_batch() with a closure that calls backward() itself");
  }
  before_step();
  const double weight = own_.weights->take_next();
  own_.exchange->open_one_backward(weight);
  backwards_.open(backward);
  const auto completed = [this] {
    const auto works = watch_.hooked();
    backwards_.end();
    if (!own_.exchange->protocol().is_open()) return;  // a hook has called fail()
    in_step([this] {
      own_.gradients->take_set_by_hand(true);
      finish();
    });
  };
  watch_.watch(completed, [this](std::exception_ptr error) { backward_aborted(std::move(error)); });
  auto& look = own_.exchange->leaves().first_look();
  // A program that has ever said what a loss counts knows.
  if (!is_weighted_ && own_.options.divide == Divide::by_weight && look.looks_at_rows()) {
    if (const auto rows = batch_rows()) look.rows(static_cast<std::uint64_t>(*rows));
  }
  in_step([&] { open_parts(counts_alone(weight)); });
}

/// The exchange has opened the step. `is_alone`: of one backward, of this worker alone.
void DataParallelState::open_parts(bool is_alone) {
  facts_ = {.number = own_.exchange->protocol().number(),
            .divides = own_.options.divide != Divide::not_at_all && !is_alone};
  own_.step_parts.open(facts_);
}

void DataParallelState::before_step(bool gradients_come) {
  require_step_together(own_.group.state()->job(), own_.options.name);
  is_used_ = true;
  own_.placed->require_sent();
  own_.gradients->release_kept();
  if (!gradients_come) own_.gradients->settle_sums();
  own_.hooked.attach_new();
}

void DataParallelState::backward_aborted(std::exception_ptr error) noexcept {
  backwards_.end();
  if (!own_.exchange->protocol().is_open()) return;
  drop("its backward threw an exception");
  told_ = {own_.exchange->protocol().last_number(), std::move(error)};
}

// ---- operations ----

std::optional<double> DataParallelState::loss_weight() const {
  watch_.settle();
  return own_.weights->current();
}

void DataParallelState::carried() {
  if (!backwards_.in_scope()) own_.weights->carried();
}

std::string DataParallelState::loss_label() const {
  return fmt::format("DataParallel \"{}\"", own_.options.name);
}

// ---- steps ----

void DataParallelState::next_weight(double weight) {
  watch_.entered();
  require_loss_weight(weight);
  is_weighted_ = true;
  own_.weights->set_next(weight);
  if (!backwards_.in_scope()) tell_next_weight();
}

/// In a group of one the mean is the one backward's gradient: neither multiplied nor divided.
bool DataParallelState::counts_alone(double weight) const {
  return own_.group.size() == 1 && own_.options.divide != Divide::not_at_all && weight > 0;
}

/// Of the next backward outside of a scope.
void DataParallelState::tell_next_weight() {
  const double next = own_.weights->next();
  own_.weights->set_current(next);
  own_.split->set_weight(counts_alone(next) ? 1 : next);
}

void DataParallelState::open_scope(const AccumulateOptions& options) {
  watch_.entered();
  if (backwards_.in_scope() || own_.exchange->protocol().is_open())
    throw InvalidArgument("accumulation scopes do not nest");
  if (options.micro_batches && *options.micro_batches < 0) {
    throw InvalidArgument(fmt::format("accumulate: {} micro-batches", *options.micro_batches));
  }
  if (options.seed && !options.micro_batches) {
    throw InvalidArgument("accumulate: a seed needs micro_batches, by which leaves are counted");
  }
  before_step();
  own_.exchange->open_scope(options.micro_batches);
  backwards_.open_scope();
  own_.weights->open_scope();
  in_step([this] { open_parts(); });
}

void DataParallelState::run_leaf(double weight, const std::optional<std::uint64_t>& seed,
                                 const std::function<torch::Tensor()>& compute) {
  if (backwards_.in_leaf()) throw InvalidArgument("micro_batch() does not nest");
  in_step([&] {
    require_loss_weight(weight);
    std::optional<RandomStateGuard> guard;
    if (seed) {
      guard.emplace(own_.model.device());
      torch::manual_seed(leaf_seed(*seed, own_.exchange->protocol().number(),
                                   own_.exchange->leaves().next_leaf()));
    }
    own_.exchange->leaves().begin_leaf(weight);
    own_.split->set_weight(weight);
    own_.weights->begin_leaf(weight);
    backwards_.begin_leaf();
    const LossWeightScope counts({.value = weight, .sinks = {weak_from_this()}});
    const auto loss = compute();
    if (loss.defined() && !backwards_.is_given_up()) {
      backwards_.begin_last();
      loss.backward();
      backwards_.end_last();
    }
    if (backwards_.is_given_up()) {
      own_.split->drop();
      return backwards_.end_leaf();
    }
    own_.gradients->take_set_by_hand(false);
    own_.exchange->leaves().end_leaf();
    backwards_.end_leaf();
  });
}

void DataParallelState::finish_scope() {
  in_step([this] {
    own_.gradients->require_none_set_by_hand("outside of micro_batch()");
    backwards_.end_scope();
    finish();
  });
}

void DataParallelState::finish() {
  own_.step_parts.publish();
  own_.exchange->arrive(own_.memory);
  own_.step_parts.judge(facts_);
  if (!facts_.verdict.refusal.empty()) {
    throw Diverged(fmt::format("step {}: {}", facts_.number, facts_.verdict.refusal));
  }
  outcome_ = own_.exchange->complete([&] { own_.step_parts.apply(facts_); });
  facts_.touched = outcome_.touched;
  facts_.report = outcome_.report;
  own_.step_parts.finish(facts_);
  tell_next_weight();
  outcome_.report = facts_.report;
  if (own_.options.out_of_data == OutOfData::stop_all && outcome_.drained > 0) stopped_ = true;
}

void DataParallelState::synchronize(std::optional<double> asked) {
  watch_.entered();
  if (asked) require_loss_weight(*asked);
  if (backwards_.in_scope())
    throw InvalidArgument("synchronize() inside an accumulation scope: call its finish()");
  const bool by_hand = own_.gradients->holds_set_by_hand();
  before_step(by_hand);
  const double weight = own_.weights->take_next(asked);
  in_step([&] {
    if (by_hand) {
      own_.exchange->open_one_backward(weight);
      open_parts();
      own_.gradients->take_set_by_hand(true);
    } else {
      own_.exchange->open_without_gradient(weight, false);
      open_parts();
    }
    finish();
  });
}

std::int64_t DataParallelState::join(const std::function<void()>& update) {
  watch_.entered();
  if (backwards_.in_scope())
    throw InvalidArgument("join() inside an accumulation scope: call its finish() first");
  own_.gradients->require_none_set_by_hand("before join()");
  own_.weights->set_next(1);  // its backward does not come
  tell_next_weight();
  std::int64_t answered = 0;
  while (!stopped_) {
    before_step(/*gradients_come=*/false);
    try {
      in_step([this] {
        own_.exchange->open_without_gradient(0, true);
        open_parts();
        finish();
      });
    } catch (const PeerFailed&) {
      told_ = {};  // the program does not hear of it
      continue;    // dropped by all: whoever has data goes on with the next
    }
    if (outcome_.drained == own_.group.size()) break;
    update();
    ++answered;
  }
  stopped_ = false;
  return answered;
}

void DataParallelState::fail(const std::string& why) noexcept {
  watch_.entered();
  const auto& exchange = *own_.exchange;
  if (backwards_.is_given_up()) return;
  if (!exchange.protocol().is_open() && told_.is_reported(exchange.protocol().last_number(), why))
    return;
  drop(why);
}

void DataParallelState::told_of_dropped(std::uint64_t scope, std::exception_ptr error) noexcept {
  const auto& exchange = *own_.exchange;
  if (exchange.protocol().is_open() || scope != backwards_.dropped_scope()) return;
  if (exchange.protocol().last_number() != dropped_step_) return;
  told_ = {dropped_step_, std::move(error)};
}

void DataParallelState::leave_scope(const std::string& why, std::exception_ptr error) noexcept {
  drop(why);
  told_ = {own_.exchange->protocol().last_number(), std::move(error)};
}

/// Ends the open step, or the next one, whose weight goes with it, on all workers.
void DataParallelState::drop(const std::string& why) noexcept {
  if (!own_.exchange->protocol().is_open()) own_.weights->set_next(1);
  own_.exchange->protocol().fail(why);
  forget_step();
}

/// The last step was dropped, by this worker or others.
void DataParallelState::forget_step() noexcept {
  backwards_.drop();
  dropped_step_ = own_.exchange->protocol().last_number();
  own_.step_parts.drop();
  tell_next_weight();
}

void DataParallelState::collectively(const std::function<void()>& calls) {
  watch_.entered();
  is_used_ = true;
  own_.exchange->protocol().run_collectives(calls);
}

void DataParallelState::sync_buffers() {
  is_used_ = true;
  if (own_.model.buffers().empty()) return;
  collectively(
      [this] { send_from_first_rank(own_.group, own_.model.buffers(), own_.options.deadline); });
}

std::vector<std::string> DataParallelState::touched() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < outcome_.touched.size(); ++p) {
    if (outcome_.touched[p]) names.push_back(own_.model.name(p));
  }
  return names;
}

}  // namespace tutti
