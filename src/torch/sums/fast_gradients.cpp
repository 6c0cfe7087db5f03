#include "torch/sums/fast_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error_kind.h"
#include "base/timeline.h"
#include "torch/model/real_numbers.h"
#include "torch/sums/watched_wait.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

/// An engine may notice that a peer has ended before its job does, which knows who it was.
constexpr std::chrono::seconds kUntilLossIsKnown{2};

c10::ScalarType sum_type(const torch::Tensor& parameter) {
  return dtype_of(parameter) == DType::float64 ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace

/// Last registered first, as backward reaches them; each bucket is of one type.
Buckets FastGradients::buckets_of(const WrappedModel& model, const StepExchange& exchange) {
  const auto& options = exchange.options();
  Buckets all;
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    auto order = BucketSchedule::default_order(exchange.plan());
    std::erase_if(order, [&](auto p) { return sum_type(model.tensor(p)) != type; });
    auto buckets = fuse(order, exchange.plan(), options.first_fusion, options.fusion);
    all.insert(all.end(), buckets.begin(), buckets.end());
  }
  return all;
}

FastGradients::FastGradients(const WrappedModel& model, StepExchange& exchange,
                             std::shared_ptr<SumEngine> engine)
    : model_(model),
      exchange_(exchange),
      engine_(std::move(engine)),
      traffic_(exchange.plan(), buckets_of(model, exchange), exchange.group().size()),
      bucket_of_(model.parameters().size()),
      offset_of_(model.parameters().size()),
      written_(model.parameters().size()) {
  const auto& group = exchange.group();
  if (engine_->rank() != group.rank() || engine_->size() != group.size()) {
    throw InvalidArgument(fmt::format(
        "the engine {} of \"{}\" has rank {} of {}, and has to have rank {} of {}", engine_->name(),
        exchange.options().name, engine_->rank(), engine_->size(), group.rank(), group.size()));
  }
  if (engine_->has_ended_ || engine_->is_taken_) {
    throw InvalidArgument(fmt::format(
        "the engine {} of \"{}\" {}: make one of its own", engine_->name(), exchange.options().name,
        engine_->has_ended_ ? "has been aborted" : "is that of another DataParallel"));
  }
  for (auto& parameters : buckets_of(model, exchange)) {
    Bucket bucket;
    bucket.type = sum_type(model.tensor(parameters.front()));
    for (const auto p : parameters) {
      bucket_of_[p] = static_cast<std::uint32_t>(buckets_.size());
      offset_of_[p] = bucket.elements;
      bucket.elements += count_of_reals(model.tensor(p));
    }
    bucket.parameters = std::move(parameters);
    buckets_.push_back(std::move(bucket));
  }
  if (!model.device().is_cpu()) {
    const auto& deadline = exchange.options().deadline;
    gathers_ = std::make_unique<TorchDevice>(group, model.device(), deadline);
    sums_ = std::make_unique<TorchDevice>(group, model.device(), deadline);
  }
  engine_->is_taken_ = true;
}

FastGradients::~FastGradients() {
  if (is_running_) end("its DataParallel has ended");
  engine_->is_taken_ = false;
}

void FastGradients::end(const std::string& why) noexcept {
  if (!ended_.empty()) return;
  ended_ = why;
  engine_->has_ended_ = true;
  engine_->abort();
}

std::string FastGradients::failure_text() const {
  return fmt::format("the engine {} of \"{}\" has failed: {}; make another one", engine_->name(),
                     exchange_.options().name, failure_);
}

// ---- into the open step ----

void FastGradients::queue(TorchDevice* device, const std::function<void()>& work,
                          const torch::Tensor& used) {
  const torch::NoGradGuard no_grad;
  if (device == nullptr) return work();
  device->queue(work, {used});
}

torch::Tensor FastGradients::slot(std::size_t parameter) const {
  const auto like = as_reals(model_.tensor(parameter).detach());
  return buckets_[bucket_of_[parameter]].flat.as_strided(like.sizes(), like.strides(),
                                                         offset_of_[parameter]);
}

torch::Tensor FastGradients::zeros(const Bucket& bucket) const {
  return torch::zeros({bucket.elements}, torch::TensorOptions(model_.device()).dtype(bucket.type));
}

void FastGradients::open(const StepFacts&) {
  if (!ended_.empty()) throw DeviceFailed(ended_);
  begin_missed(exchange_.protocol().step());
  std::ranges::fill(written_, std::uint8_t{0});
  for (auto& bucket : buckets_) bucket.missing = bucket.parameters.size();
  if (gathers_) gathers_->comes_after(sums_->mark());  // results of the last step are read there
}

void FastGradients::take(std::size_t parameter, const torch::Tensor& gradient, bool last) {
  const auto& leaves = exchange_.nodes().leaves();
  const double weight = leaves.weight();
  auto& bucket = buckets_[bucket_of_[parameter]];
  if (weight != 0) {
    const bool is_first = std::exchange(written_[parameter], std::uint8_t{1}) == 0;
    queue(
        gathers_.get(),
        [&] {
          if (!bucket.flat.defined()) bucket.flat = zeros(bucket);
          const auto to = slot(parameter);
          if (!is_first) {
            to.add_(gradient.to(bucket.type), weight);
          } else {
            to.copy_(gradient);
            if (weight != 1) to.mul_(weight);
          }
        },
        gradient);
  }
  exchange_.leaves().note(parameter, last);
  // In a scope other leaves may follow.
  if (!last || exchange_.protocol().mode() != StepMode::one_backward) return;
  --bucket.missing;
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) begin_next();
}

/// Where this worker has written none of a gradient there are zeros.
void FastGradients::begin_next() {
  auto& bucket = buckets_[next_++];
  if (bucket.elements == 0) return;
  queue(gathers_.get(),
        [&] {
          const bool is_new = !bucket.flat.defined();
          if (is_new) bucket.flat = zeros(bucket);
          for (const auto p : bucket.parameters) {
            if (!is_new && written_[p] == 0) slot(p).zero_();
          }
        },
        {});
  if (sums_) sums_->comes_after(gathers_->mark());
  queue(
      sums_.get(),
      [&] {
        if (!failure_.empty()) return;
        is_running_ = true;
        try {
          engine_->all_reduce(bucket.flat);
        } catch (...) {
          failure_ = exception_text();  // maybe for a peer that has ended: who it was comes later
        }
      },
      bucket.flat);
}

/// Sums of steps that this worker has dropped, or never opened.
void FastGradients::begin_missed(std::uint64_t before) {
  for (; step_ < before; ++step_) {
    std::ranges::fill(written_, std::uint8_t{0});
    while (next_ < buckets_.size()) begin_next();
    // Sums may run on beside the next step.
    for (auto& bucket : buckets_) bucket.flat.reset();
    next_ = 0;
  }
}

void FastGradients::publish() {
  while (next_ < buckets_.size()) begin_next();
  next_ = 0;
  ++step_;
}

// ---- out of it ----

/// Looks after peers meanwhile: one that has ended will not come, and the engine may not tell.
void FastGradients::await_sums() {
  const auto& protocol = exchange_.protocol();
  const TimelineSpan span(protocol.job().timeline(), "sums of the engine");
  const auto mark = sums_ ? sums_->mark() : nullptr;
  std::optional<Clock::time_point> failed_at;
  const auto ready = [&] {
    if (has_finished(mark)) return true;
    throw_if_dropped();
    if (failure_.empty()) return false;
    const auto now = protocol.job().system().now();
    if (!failed_at) failed_at = now;
    if (now - *failed_at < kUntilLossIsKnown) return false;
    end(failure_text());
    throw DeviceFailed(ended_);
  };
  await_watched(
      exchange_.group(), ready,
      [&] { return fmt::format("the sums of {} in {}", engine_->name(), protocol.step_text()); },
      exchange_.options().deadline);
  is_running_ = false;
}

/// A worker that has given the step up since may have aborted its part of the sums.
void FastGradients::throw_if_dropped() {
  auto& protocol = exchange_.protocol();
  const auto& group = exchange_.group();
  const auto has_dropped = [&](int r) {
    return r != group.rank() &&
           (protocol.header(r).failed.load() >= protocol.step() || protocol.ending().has_left(r));
  };
  for (int r = 0; r < group.size(); ++r) {
    if (!has_dropped(r)) continue;
    const auto never = [] { return false; };
    const auto missing = [&] { return RankSet{group.job_rank(r)}; };
    protocol.wait_for(never, missing, [&](int other) { return other != r; });
  }
}

bool FastGradients::has_finished(const DeviceMark& mark) {
  if (!failure_.empty()) return false;
  try {
    if (!engine_->finished()) return false;
  } catch (...) {
    failure_ = exception_text();
    return false;
  }
  return !sums_ || sums_->has_passed(mark);
}

void FastGradients::apply(const StepFacts&) {
  await_sums();
  const auto& nodes = exchange_.nodes();
  traffic_.note(nodes);
  for (auto& bucket : buckets_) {
    if (bucket.elements == 0) continue;
    queue(
        sums_.get(),
        [&] {
          // By a tensor: devices multiply by the inverse of a number.
          const auto divide = [](const torch::Tensor& sum, double by) {
            const auto all = sum.dim() == 0 ? sum.unsqueeze(0) : sum;
            if (by != 1) all.div_(torch::full({1}, by, sum.options()));
          };
          for (const auto p : bucket.parameters) {
            if (!nodes.touched(p)) continue;
            const auto by = nodes.sources_of(p).divisor;
            if (nodes.divisor() != Divisor::contributors) return divide(bucket.flat, by);
            divide(slot(p), by);
          }
        },
        bucket.flat);
  }
}

void FastGradients::give(std::size_t parameter, const torch::Tensor& to) {
  queue(
      sums_.get(), [&] { as_reals(to).copy_(slot(parameter)); }, to);
}

void FastGradients::hand_over() {
  if (sums_) sums_->current_stream_waits(sums_->mark());
}

void FastGradients::commit(StepFacts& step) {
  traffic_.count();
  step.report.buckets = static_cast<int>(buckets_.size());
  for (std::size_t p = 0; p < written_.size(); ++p) {
    const auto bytes = exchange_.plan().bytes_of(p);
    step.report.dense_bytes += bytes;
    if (step.touched[p] != 0) step.report.max_sent_bytes += bytes;
  }
}

void FastGradients::drop() noexcept {
  if (!ended_.empty()) return;
  const auto& protocol = exchange_.protocol();
  try {
    if (protocol.ending().is_over()) return end("its DataParallel has failed");
    if (!failure_.empty()) return end(failure_text());
    begin_missed(protocol.numbers().done + 1);
    for (auto& bucket : buckets_) bucket.flat.reset();
  } catch (...) {
    failure_ = exception_text();
    end(failure_text());
  }
}

void FastGradients::add_traffic(TrafficReport& report) const {
  report = merged(std::move(report), traffic_.report());
}

}  // namespace tutti
