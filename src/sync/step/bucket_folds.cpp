#include "sync/step/bucket_folds.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/timeline.h"
#include "job/wire/board.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kMostBetweenHosts = std::int64_t{1} << 20;  ///< elements of a bucket

std::string_view text_of(StepMode mode) {
  switch (mode) {
    case StepMode::one_backward:
      return "one backward";
    case StepMode::micro_batches:
      return "an accumulation scope";
    case StepMode::no_gradient:
      return "nothing of its own";
  }
  return "";
}

}  // namespace

BucketFolds::BucketFolds(StepProtocol& protocol, NodeStore& nodes, const ExchangeOptions& options)
    : protocol_(protocol), nodes_(nodes), options_(options), slices_(nodes_) {}

void BucketFolds::use(HostExchange& hosts) {
  hosts_ = &hosts;
  schedule_ = schedule_of(BucketSchedule::default_order(nodes_.plan()));
}

/// Between hosts a bucket takes as long as the link needs, so that large ones leave it idle.
std::unique_ptr<BucketSchedule> BucketFolds::schedule_of(
    std::span<const std::uint32_t> order) const {
  const auto most = [this](std::int64_t elements) {
    return hosts_->spans_hosts() ? std::min(elements, kMostBetweenHosts) : elements;
  };
  return std::make_unique<BucketSchedule>(nodes_.plan(), order, most(options_.first_fusion),
                                          most(options_.fusion));
}

void BucketFolds::open(bool is_alone) {
  is_alone_ = is_alone;
  fired_.clear();
  unfired_.assign(schedule_->size(), 0);
  for (std::size_t b = 0; b < schedule_->size(); ++b) {
    unfired_[b] = static_cast<std::uint32_t>(schedule_->parameters(b).size());
  }
  next_bucket_ = next_left_ = next_summed_ = 0;
  collected_ = false;
}

std::uint32_t BucketFolds::next_parameter() const {
  if (schedule_->size() == 0) return 0;
  return schedule_->parameters(std::min(next_bucket_, schedule_->size() - 1)).front();
}

bool BucketFolds::leave_early() const {
  if (options_.coded) return false;
  return protocol_.mode() == StepMode::one_backward ||
         (hosts_->spans_hosts() && std::ranges::any_of(nodes_.boards(), [](const auto& board) {
            const auto& other = board.header();
            return other.mode == StepMode::micro_batches && other.declared > 0;
          }));
}

/// Whether parameters that the open leaf has written for the last time are complete on this worker,
/// and others use that before the step is published.
bool BucketFolds::completes_buckets() const {
  if (protocol_.mode() == StepMode::one_backward) return true;
  const auto& leaves = nodes_.leaves();
  return hosts_->spans_hosts() && !options_.coded && protocol_.mode() == StepMode::micro_batches &&
         leaves.start() && leaves.leaves() + 1 == protocol_.own_header().declared;
}

void BucketFolds::note_write(std::size_t parameter, bool last) {
  if (!order_agreed_ && protocol_.group().rank() == 0 &&
      std::find(fired_.begin(), fired_.end(), parameter) == fired_.end()) {
    fired_.push_back(static_cast<std::uint32_t>(parameter));
  }
  if (!last || !completes_buckets()) return;
  const auto bucket = schedule_->bucket_of(parameter);
  if (--unfired_[bucket] == 0) {
    publish_bucket(bucket);
    if (!options_.coded) hosts_->resume_background();
  }
  if (!hosts_->has_background()) protocol_.guarded([this] { fold_ready(); });
}

/// The bucket is complete on this worker. Where hosts add it up they learn so, and what it has.
void BucketFolds::publish_bucket(std::size_t bucket) {
  auto& ready = nodes_.boards().mine().bucket_ready(bucket);
  if (!hosts_->spans_hosts() || options_.coded) {
    ready.store(protocol_.step(), std::memory_order_release);
    announce(protocol_.job().board());
    return;
  }
  if (protocol_.mode() == StepMode::micro_batches && !nodes_.is_published()) {
    auto& mine = protocol_.own_header();
    mine.leaves = mine.declared;
    nodes_.publish();
  }
  nodes_.send_entries(schedule_->parameters(bucket));
  publish(protocol_.job(), ready, protocol_.step(), {},
          with_all(nodes_.boards().of(0).bucket_ready(bucket), protocol_.state().members()));
}

void BucketFolds::publish_all() {
  for (std::size_t b = 0; b < schedule_->size(); ++b) publish_bucket(b);
}

void BucketFolds::publish_order() {
  if (order_agreed_ || protocol_.group().rank() != 0 || fired_.empty()) return;
  for (const auto p : BucketSchedule::default_order(nodes_.plan())) {
    if (std::find(fired_.begin(), fired_.end(), p) == fired_.end()) fired_.push_back(p);
  }
  const auto order = nodes_.boards().mine().order();
  std::copy(fired_.begin(), fired_.end(), order.begin());
  protocol_.own_header().has_order = 1;
  send_ahead(protocol_.job(), {{order.data(), order.size_bytes()}});
}

bool BucketFolds::is_ready(std::size_t bucket) const {
  return std::ranges::all_of(nodes_.boards(), [&](const StepBoard& board) {
    return board.bucket_ready(bucket).load(std::memory_order_acquire) == protocol_.step() ||
           (hosts_->spans_hosts() &&
            board.header().published.load(std::memory_order_acquire) == protocol_.step());
  });
}

void BucketFolds::fold_ready() {
  if (options_.coded) return;
  if (protocol_.state().spans_hosts()) return sum_ready();
  while (next_bucket_ < schedule_->size() && is_ready(next_bucket_)) {
    if (!collected_) collect_nodes();
    fold_bucket(next_bucket_++);
  }
  if (leave_) send_folded();
}

void BucketFolds::send_folded() {
  const auto is_folded = [this](int worker) {
    const auto& board = nodes_.boards().of(worker);
    return board.bucket_folded(next_left_).load(std::memory_order_acquire) == protocol_.step();
  };
  while (next_left_ < next_bucket_ && std::ranges::all_of(nodes_.team().members, is_folded)) {
    leave_(schedule_->parameters(next_left_++));
  }
}

void BucketFolds::sum_ready() {
  for (; next_summed_ < schedule_->size() && is_ready(next_summed_); ++next_summed_) {
    if (!collected_) collect_nodes();
    hosts_->sums().add(schedule_->parameters(next_summed_));
  }
  hosts_->sums().progress();
}

void BucketFolds::finish() {
  if (!collected_) collect_nodes();
  if (!hosts_->spans_hosts()) return;
  const TimelineSpan span(protocol_.job().timeline(), "sums of hosts");
  for (; next_summed_ < schedule_->size(); ++next_summed_) {
    hosts_->sums().add(schedule_->parameters(next_summed_));
  }
  hosts_->await_sums();
}

void BucketFolds::fold_bucket(std::size_t bucket) {
  if (holds_values()) {
    const TimelineSpan span(protocol_.job().timeline(), "fold");
    slices_.fold(schedule_->parameters(bucket));
  }
  if (leave_) note_folded(bucket);
}

void BucketFolds::note_folded(std::size_t bucket) {
  auto& folded = nodes_.boards().mine().bucket_folded(bucket);
  folded.store(protocol_.step(), std::memory_order_release);
  announce(protocol_.job().board());
}

void BucketFolds::update_each(const std::function<void(std::size_t)>& update) {
  while (next_bucket_ < schedule_->size()) {
    update(next_bucket_);
    note_folded(next_bucket_++);
    send_folded();
  }
}

void BucketFolds::fold_slices() {
  while (next_bucket_ < schedule_->size()) fold_bucket(next_bucket_++);
}

/// Lists the nodes of all workers in tree order. Their headers were published with the first bucket
/// that was complete on all, or with the step.
void BucketFolds::collect_nodes() {
  const auto& group = protocol_.group();
  bool single = false;
  bool scope = false;
  for (int r = 0; r < group.size(); ++r) {
    const auto& other = protocol_.header(r);
    single = single || other.mode == StepMode::one_backward;
    scope = scope || other.mode == StepMode::micro_batches;
    if (other.schedule != schedule_->hash()) {
      throw Mismatch(fmt::format("{}: rank {} has another bucket schedule than rank {}",
                                 protocol_.step_text(), group.job_rank(r),
                                 group.job_rank(group.rank())));
    }
  }
  if (single && scope) throw Mismatch(protocol_.step_text() + mode_texts());
  std::vector<HeldNode> nodes;
  std::int64_t leaves = 0;
  for (int r = 0; r < group.size(); r += options_.workers_per_shard) {
    const auto& other = protocol_.header(r);
    if (other.mode == StepMode::micro_batches) {
      append_nodes(nodes, leaves, r, other);
    } else if (!scope || other.declared > 0) {
      // A worker that joined keeps the place of its leaf, so that a sum over single leaves is the
      // tree over ranks, whichever of them wrote.
      nodes.push_back({r, 0, {leaves, 1}, other.weight});
      ++leaves;
    }
  }
  nodes_.collect(std::move(nodes), leaves, single && is_alone_);
  collected_ = true;
}

std::string BucketFolds::mode_texts() const {
  std::string text = ": workers take part in different ways:";
  for (int r = 0; r < protocol_.group().size(); ++r) {
    text += fmt::format(" rank {} with {};", protocol_.group().job_rank(r),
                        text_of(protocol_.header(r).mode));
  }
  text.pop_back();
  return text;
}

void BucketFolds::adopt_order() {
  if (order_agreed_ || protocol_.header(0).has_order == 0) return;
  schedule_ = schedule_of(nodes_.boards().of(0).order());
  order_agreed_ = true;
}

}  // namespace tutti
