#include "torch/shards/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/error_kind.h"
#include "comm/group_state.h"
#include "kernels/hash.h"
#include "run/numbers/metric_exchange.h"
#include "sync/nodes/logical_workers.h"
#include "torch/model/resolved.h"
#include "torch/run/stored_tensors.h"
#include "torch/shards/trainer_settings.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::string_view kCauses =
    "A shard may depend on seed, step and shard alone. Usual causes: a module in eval() on one "
    "worker; data, targets or noise from a generator without a seed, or one that shards share; "
    "the worker's rank, or a variable that an earlier shard changed, in the closure; another "
    "instruction set or library; a bad core or bad memory";

}  // namespace

Audit::Audit(StepExchange& exchange, const WrappedModel& model, const ShardStates& states,
             std::vector<ShardRange> shards, std::vector<ShardRange> logical, std::int64_t every,
             const std::string& name)
    : exchange_(exchange),
      model_(model),
      kept_(states),
      shards_(std::move(shards)),
      logical_(std::move(logical)),
      every_(every),
      board_(exchange.memory()),
      name_(name),
      gradients_(exchange.plan().parameters().size()) {}

void Audit::open(const StepFacts& step) {
  drop();
  is_due_ = is_first_ || step.number % every_ == 0;
  if (!is_due_) return;
  pair_ = audit_pair_of(step.number / every_, shards_);
  if (!has_copies(pair_.auditor)) pair_.auditor = pair_.owner;
  if (pair_.owner != rank() || pair_.auditor == rank()) return;
  board_.hand_over(packed(kept_.committed_of(pair_.shard)));
}

/// Whether the worker's host has copies of the parameters of the audited shard's logical worker.
bool Audit::has_copies(int worker) const {
  const auto& group = *exchange_.group().state();
  const auto mine = std::ranges::find_if(
      logical_, [&](const ShardRange& range) { return pair_.shard < range.end; });
  if (mine == logical_.end()) return true;
  const auto carriers = carriers_of({&*mine, 1}, shards_).front();
  return std::ranges::any_of(carriers,
                             [&](int r) { return group.host_of(r) == group.host_of(worker); });
}

int Audit::second() const {
  const bool handed = pair_.auditor != pair_.owner && board_.handed_by(pair_.owner).has_value();
  return handed ? pair_.auditor : pair_.owner;
}

void Audit::begin(std::int64_t shard) {
  if (is_due_ && pair_.owner == rank() && pair_.shard == shard) record();
}

void Audit::record() {
  std::fill(gradients_.begin(), gradients_.end(), kNone);
  recording_ = true;
}

std::optional<std::int64_t> Audit::begin_repetition() {
  if (!is_due_ || (rank() != pair_.owner && rank() != pair_.auditor)) return {};
  // A failure of the shard is the owner's.
  if (rank() != pair_.owner) exchange_.protocol().await_post(pair_.owner, "the audited shard of");
  if (rank() != second()) return {};
  const ShardRange shard{pair_.shard, pair_.shard + 1};
  if (rank() == pair_.owner) {
    states_.take(kept_.committed_of(pair_.shard), shard);
  } else {
    states_.take(unpacked(*board_.handed_by(pair_.owner)), shard);
  }
  record();
  repeating_ = true;
  return pair_.shard;
}

void Audit::close(double weight, const ShardMetrics& metrics, const NamedTensors& states) {
  const bool is_first = !repeating_;
  recording_ = repeating_ = false;
  ShardPrint print;
  const auto add = [&](std::string_view kind, std::string_view name, std::uint64_t hash) {
    print.items.push_back({fmt::format("{} \"{}\"", kind, name), hash});
  };
  const auto add_tensors = [&](std::string_view kind, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const auto bytes = on_host(tensor).contiguous();
      add(kind, name, digest(bytes.data_ptr(), bytes.nbytes()));
    }
  };
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    add("gradient of", model_.name(p), gradients_[p]);
  }
  print.items.push_back({"weight", std::bit_cast<std::uint64_t>(weight)});
  for (const auto& record : metrics.records()) {
    const auto values = digest(record.values.data(), record.values.size() * sizeof(double),
                               static_cast<std::uint64_t>(record.kind));
    add("metric", record.name, digest(record.partial.data(), sizeof record.partial, values));
    if (record.name == kLossName && record.partial[1] != 0) {
      print.loss = record.partial[0] / record.partial[1];
    }
  }
  if (weight > 0) add_tensors("buffer", model_.buffers());
  add_tensors("state", states);
  prints_.push_back(std::move(print));
  states_ = ShardStates(model_.device());
  if (is_first && pair_.auditor != rank()) exchange_.protocol().post();
}

void Audit::rethrow() const {
  try {
    throw;
  } catch (const InvalidArgument&) {
  } catch (const Unsupported&) {
  } catch (const IoError&) {
  } catch (const OutOfMemory&) {
  } catch (const Corrupt&) {
  } catch (const Diverged&) {
  } catch (const Error&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (...) {
  }
  const auto& group = exchange_.group();
  std::throw_with_nested(InvalidArgument(fmt::format(
      "shard {}, which rank {} has and rank {} computed once more for the audit: {}", pair_.shard,
      group.job_rank(pair_.owner), group.job_rank(rank()), exception_text())));
}

void Audit::publish() {
  if (is_due_ && (rank() == pair_.owner || rank() == pair_.auditor)) board_.publish(prints_);
}

void Audit::judge(StepFacts&) {
  if (!is_due_) return;
  exchange_.protocol().guarded([&] {
    const auto prints = board_.of(pair_.owner);
    const auto& group = exchange_.group();
    const bool alone = second() == pair_.owner;
    const auto text =
        differences(prints.front(), alone ? prints.back() : board_.of(pair_.auditor).front());
    if (text.empty()) return;
    const auto who = alone
                         ? fmt::format("twice by rank {}", group.job_rank(pair_.owner))
                         : fmt::format("by rank {} and once more by rank {}",
                                       group.job_rank(pair_.owner), group.job_rank(pair_.auditor));
    throw Mismatch(fmt::format(
        "step {} of \"{}\": the audit (audit_every) found that shard {}, computed {}, is not the "
        "same: it differs in {}. {}",
        exchange_.protocol().number(), name_, pair_.shard, who, text, kCauses));
  });
}

void Audit::drop() noexcept {
  recording_ = repeating_ = is_due_ = false;
  states_ = ShardStates(model_.device());
  prints_.clear();
}

}  // namespace tutti
