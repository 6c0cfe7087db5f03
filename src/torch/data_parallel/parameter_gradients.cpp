#include "torch/data_parallel/parameter_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/fold.h"
#include "memory/memory_need.h"
#include "torch/model/tensor_at.h"
#include "tutti/error.h"

namespace tutti {

ParameterGradients::ParameterGradients(const WrappedModel& model, StepExchange& exchange,
                                       const std::vector<GradientSource*>& sources,
                                       HostCopies* host, FastGradients* fast)
    : model_(model),
      exchange_(exchange),
      host_(host),
      fast_(fast),
      intake_(model, exchange, sources, nullptr, fast == nullptr ? host : nullptr),
      given_(model.parameters().size()),
      tied_(model.parameters().size()),
      zero_versions_(model.parameters().size(), -1) {
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    versions_.push_back(0);
    rows_.emplace_back();
    installed_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>());
    views_.push_back(model_.row_sparse(p) ? torch::Tensor() : new_view(p));
  }
  if (!is_device()) return;
  exchange.let_sums_leave(
      [this](std::span<const std::uint32_t> parameters) { give_early(parameters); });
}

void ParameterGradients::open(const StepFacts&) {
  std::ranges::fill(given_, nullptr);
  if (is_device()) intake_.device().open();
}

// ---- into the open step ----

void ParameterGradients::write(std::size_t parameter, const torch::Tensor& value, bool last) {
  const auto gradient = intake_.laid_out(parameter, value);
  if (fast_ != nullptr) return fast_->take(parameter, gradient.values(), last);
  intake_.write(parameter, gradient, last, 1);
  // The gradient is its own sum, and its memory is free as early as without Tutti.
  if (last && is_device() && !exchange_.holds_values()) give_once(parameter);
}

void ParameterGradients::take(std::size_t parameter, const torch::Tensor& value, bool last) {
  model_.require_in_place(parameter);
  release_kept(parameter);  // a closure of a scope may have kept it
  require_cleared(parameter);
  if (holds_set_by_hand(parameter)) write(parameter, taken_by_hand(parameter), false);
  auto& grad = model_.tensor(parameter).mutable_grad();
  if (grad.defined() && is_view(parameter, grad)) tied_[parameter] = 1;
  grad.reset();
  write(parameter, value, last);
}

void ParameterGradients::take_set_by_hand(bool last) {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    if (!holds_set_by_hand(p)) continue;
    if (exchange_.nodes().leaves().finished(p)) {
      throw InvalidArgument(
          fmt::format("{}: its gradient was set by hand in the midst of a backward, which had "
                      "reached it already: set it before",
                      model_.label(p)));
    }
    release_kept(p);
    write(p, taken_by_hand(p), last);
  }
  if (last) intake_.settle();
}

void ParameterGradients::require_accumulated(std::size_t parameter) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined()) return;
  model_.require_in_place(parameter);
  if (!is_view(parameter, grad)) return;
  throw InvalidArgument(
      fmt::format("{} was unfrozen while it held a reduced gradient; call zero_grad() when "
                  "freezing it",
                  model_.label(parameter)));
}

bool ParameterGradients::holds_set_by_hand() const {
  bool any = false;
  for (std::size_t p = 0; p < views_.size(); ++p) {
    require_cleared(p);
    any = any || holds_set_by_hand(p);
  }
  return any;
}

// ---- out of it ----

torch::Tensor ParameterGradients::new_view(std::size_t parameter) const {
  const auto& like = model_.tensor(parameter);
  if (host_ != nullptr) {
    return host_->device().empty_like(like, [&] {
      return fmt::format("beside its parameters, the gradients of \"{}\" take {} there",
                         exchange_.options().name, format_bytes(host_->parameter_bytes()));
    });
  }
  if (fast_ != nullptr) return torch::empty_like(like.detach());
  return tensor_at(exchange_.nodes().result(parameter), like, like.scalar_type(),
                   exchange_.nodes().arena());
}

/// Besides this object param.grad may have the view, or after zero_grad(false) an alias of it.
bool ParameterGradients::is_kept(std::size_t parameter) const {
  const auto& view = views_[parameter];
  if (!view.defined() || (view.use_count() == 1 && view.storage().use_count() == 1)) return false;
  if (view.numel() == 0) return false;
  const auto& grad = model_.tensor(parameter).grad();
  const bool is_same = grad.defined() && grad.is_same(view);
  const bool is_alias = !is_same && grad.defined() && is_view(parameter, grad);
  return view.use_count() > (is_same ? 2U : 1U) ||
         view.storage().use_count() > (is_alias ? 2U : 1U);
}

void ParameterGradients::release_kept() {
  for (std::size_t p = 0; p < views_.size(); ++p) release_kept(p);
}

void ParameterGradients::release_kept(std::size_t parameter) {
  if (tied_[parameter] == 0 && is_kept(parameter)) release(parameter);
}

/// All tensors that the program has share one storage, which gets the copy: they stay tied to one
/// another, and are none of ours from then on.
void ParameterGradients::release(std::size_t parameter) {
  auto& grad = model_.tensor(parameter).mutable_grad();
  const bool is_grad = grad.defined() && is_view(parameter, grad);
  if (is_grad && is_cleared(parameter, grad)) return;
  if (views_own_memory()) {
    const auto kept = std::exchange(views_[parameter], new_view(parameter));
    zero_versions_[parameter] = -1;
    const torch::NoGradGuard no_grad;
    if (is_grad) views_[parameter].copy_(kept);
    versions_[parameter] = static_cast<std::int64_t>(views_[parameter]._version());
    if (is_grad) grad = views_[parameter];
    return;
  }
  auto* const storage = views_[parameter].storage().unsafeGetStorageImpl();
  auto copy = c10::GetAllocator(c10::kCPU)->allocate(storage->nbytes());
  std::memcpy(copy.get(), storage->data(), storage->nbytes());
  storage->set_data_ptr_noswap(std::move(copy));
  views_[parameter] = new_view(parameter);
  versions_[parameter] = static_cast<std::int64_t>(views_[parameter]._version());
  if (is_grad) grad = views_[parameter];  // a backward onto it is found by require_cleared()
}

bool ParameterGradients::is_cleared(std::size_t parameter, const torch::Tensor& grad) const {
  const bool written = !model_.row_sparse(parameter) &&
                       static_cast<std::int64_t>(grad._version()) != versions_[parameter];
  if (!written) return false;
  if (host_ != nullptr) return is_zero_on_device(parameter, grad);
  return all_zero(grad.data_ptr(), grad.nbytes());
}

/// Asks for all that were written since the last step at once: each answer waits for the device.
bool ParameterGradients::is_zero_on_device(std::size_t parameter, const torch::Tensor& grad) const {
  const auto version_of = [](const torch::Tensor& tensor) {
    return static_cast<std::int64_t>(tensor._version());
  };
  if (zero_versions_[parameter] == version_of(grad)) return true;
  const torch::NoGradGuard no_grad;
  std::vector<std::size_t> asked;
  std::vector<torch::Tensor> answers;
  for (std::size_t p = 0; p < views_.size(); ++p) {
    const auto& one = model_.tensor(p).grad();
    if (!one.defined() || !is_view(p, one) || version_of(one) == versions_[p]) continue;
    asked.push_back(p);
    answers.push_back((one == 0).all());
  }
  const auto all = torch::stack(answers).cpu();
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!all[static_cast<std::int64_t>(i)].item<bool>()) continue;
    zero_versions_[asked[i]] = version_of(model_.tensor(asked[i]).grad());
  }
  return zero_versions_[parameter] == version_of(grad);
}

void ParameterGradients::commit(StepFacts& step) {
  std::ranges::fill(tied_, std::uint8_t{0});
  for (std::size_t p = 0; p < views_.size(); ++p) {
    const bool comes = step.touched[p] != 0 && exchange_.is_updated_here(p);
    auto& grad = model_.tensor(p).mutable_grad();
    if (comes && model_.row_sparse(p)) {
      grad = std::exchange(rows_[p], torch::Tensor());
      installed_[p] = grad._values().storage().getWeakStorageImpl();
    } else if (comes) {
      give_once(p);
      versions_[p] = static_cast<std::int64_t>(views_[p]._version());
      grad = views_[p];
    } else {
      grad.reset();
    }
  }
  if (fast_ != nullptr) fast_->hand_over();
  if (is_device()) intake_.device().hand_over();
  if (host_ != nullptr) host_->report(step.report);
}

/// By set_data() the program may have given a view other memory.
bool ParameterGradients::is_in_place(std::size_t parameter) const {
  const auto& view = views_[parameter];
  const auto& like = model_.tensor(parameter);
  if (view.sizes() != like.sizes() || view.strides() != like.strides()) return false;
  return views_own_memory() || view.numel() == 0 ||
         view.const_data_ptr() == exchange_.nodes().result(parameter);
}

/// The sum is where param.grad shows it: on a device it is on its way there.
void ParameterGradients::give(std::size_t parameter) {
  auto& view = views_[parameter];
  if (!is_in_place(parameter)) view = new_view(parameter);
  if (fast_ != nullptr) return fast_->give(parameter, view);
  if (host_ == nullptr) return view.unsafeGetTensorImpl()->bump_version();
  intake_.device().give(parameter, view);
}

/// This worker has written its gradients of these parameters, or has none: on the CPU others write
/// sums into the arena at the same time.
void ParameterGradients::give_early(std::span<const std::uint32_t> parameters) {
  for (const auto p : parameters) {
    if (exchange_.nodes().touched(p)) give_once(p);
  }
}

void ParameterGradients::give_once(std::size_t parameter) {
  auto& given = given_[parameter];
  if (given != nullptr && given == views_[parameter].const_data_ptr()) return;
  give(parameter);
  given = views_[parameter].const_data_ptr();
}

void ParameterGradients::drop() noexcept {
  intake_.drop();
  std::ranges::fill(tied_, std::uint8_t{0});
  for (std::size_t p = 0; p < views_.size(); ++p) model_.tensor(p).mutable_grad().reset();
}

/// zero_grad(false) puts a detached alias in place of what it zeroes, so memory decides.
bool ParameterGradients::is_view(std::size_t parameter, const torch::Tensor& grad) const {
  if (model_.row_sparse(parameter)) {
    const auto installed = installed_[parameter].lock();
    return installed && grad.is_sparse() && grad._nnz() > 0 &&
           grad._values().storage().unsafeGetStorageImpl() == installed.get();
  }
  const auto& view = views_[parameter];
  if (grad.is_same(view)) return true;
  if (grad.layout() != torch::kStrided || grad.numel() != view.numel()) return false;
  return grad.numel() > 0 ? grad.data_ptr() == view.data_ptr() : grad.is_alias_of(view);
}

bool ParameterGradients::holds_set_by_hand(std::size_t parameter) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined() || is_view(parameter, grad)) return false;
  // zero_grad(false) leaves a sparse gradient without rows.
  return !model_.row_sparse(parameter) || !grad.is_sparse() || grad._nnz() > 0;
}

torch::Tensor ParameterGradients::taken_by_hand(std::size_t parameter) const {
  const auto name = model_.label(parameter);
  auto& grad = model_.tensor(parameter).mutable_grad();
  const torch::NoGradGuard no_grad;
  require_plain(grad, name, model_.row_sparse(parameter));
  const auto& expected = model_.tensor(parameter);
  if (grad.sizes() != expected.sizes() || grad.scalar_type() != expected.scalar_type() ||
      grad.device() != expected.device()) {
    throw InvalidArgument(
        fmt::format("{}: its gradient was set to {} {} on {}, but it is {} {}", name,
                    c10::toString(grad.scalar_type()), c10::str(grad.sizes()), grad.device().str(),
                    c10::toString(expected.scalar_type()), c10::str(expected.sizes())));
  }
  return std::exchange(grad, torch::Tensor());
}

void ParameterGradients::require_none_set_by_hand(const char* where) const {
  for (std::size_t p = 0; p < views_.size(); ++p) {
    if (!holds_set_by_hand(p)) continue;
    throw InvalidArgument(fmt::format("{}: its gradient was set by hand {}, where nobody takes it",
                                      model_.label(p), where));
  }
}

void ParameterGradients::require_cleared(std::size_t parameter) const {
  const auto& grad = model_.tensor(parameter).grad();
  if (!grad.defined() || !is_view(parameter, grad)) return;
  if (is_cleared(parameter, grad)) return;
  throw InvalidArgument(
      fmt::format("{} still holds the reduced gradient of step {}: before the next backward call "
                  "zero_grad() of the model (an optimizer's reaches its own parameters alone), or "
                  "requires_grad_(false) on a model that this backward only passes through; run "
                  "several backwards of one step in accumulate()",
                  model_.label(parameter), exchange_.protocol().last_number()));
}

}  // namespace tutti
