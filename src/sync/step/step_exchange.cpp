#include "sync/step/step_exchange.h"

#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "memory/memory_need.h"
#include "tutti/error.h"

namespace tutti {

StepExchange::StepExchange(Group group, Plan plan, const ExchangeOptions& options)
    : group_(std::move(group)),
      options_(options),
      memory_(group_, options.name),
      nodes_(memory_, (require_equal_plans(group_, plan), std::move(plan)), store_options()),
      protocol_(nodes_.boards(), options_, hooks()),
      buckets_(protocol_, nodes_, options_),
      hosts_(protocol_, memory_, nodes_, options_, [this] { buckets_.sum_ready(); }),
      leaves_(protocol_, nodes_, options_, hosts_, buckets_),
      model_(protocol_, nodes_, options_) {
  buckets_.use(hosts_);
  outcome_.touched.resize(this->plan().parameters().size());
}

StepProtocol::Hooks StepExchange::hooks() {
  return {.what =
              [this] {
                if (this->plan().parameters().empty()) return protocol_.step_text();
                const auto& next = this->plan().parameters()[buckets_.next_parameter()];
                return fmt::format("step {}, all-reduce of \"{}\" in \"{}\"", protocol_.number(),
                                   next.spec.name, options_.name);
              },
          .pause = [this] { hosts_.pause(); },
          .drop = [this] { hosts_.drop(); }};
}

/// The other workers are about to need as much memory as this one.
NodeStore::Options StepExchange::store_options() {
  const auto require = [this](std::size_t bytes, const std::string& what) {
    const auto refusal =
        refuse_memory(protocol_.job().system(), {bytes, hosts_.arenas_here(), what});
    if (!refusal.empty()) throw OutOfMemory(refusal);
  };
  return {.arena_label = "gradients of \"" + options_.name + "\"",
          .divisor = options_.divisor,
          .modules = options_.modules,
          .reports_magnitude = options_.reports_magnitude,
          .node_boundaries = options_.node_boundaries,
          .workers_per_leaf = options_.workers_per_shard,
          .stays = options_.stays,
          .for_tiles = options_.for_tiles,
          .before_slot =
              [this, require](int slot) {
                require(plan().slot_bytes(),
                        fmt::format("gradient copy {} of \"{}\"", slot + 1, options_.name));
              },
          .before_list =
              [this, require](std::size_t parameter, std::size_t bytes) {
                require(bytes, fmt::format("the touched rows of \"{}\"",
                                           plan().parameters()[parameter].spec.name));
              }};
}

StepExchange::~StepExchange() { protocol_.leave(); }

void StepExchange::open(StepMode mode, std::int64_t declared, double weight, bool drained,
                        bool is_alone) {
  protocol_.begin();
  nodes_.open(declared < 0 ? std::nullopt : std::optional(declared));
  leaves_.first_look().open(protocol_.step());
  buckets_.open(is_alone);
  hosts_.open(protocol_.step());
  protocol_.open(mode, declared, weight, drained, buckets_.schedule_hash());
}

void StepExchange::open_one_backward(double weight) {
  const bool is_alone =
      group_.size() == 1 && !options_.coded && options_.divisor != Divisor::none && weight > 0;
  open(StepMode::one_backward, 1, weight, false, is_alone);
  nodes_.leaves().set_start(group_.rank());
  nodes_.leaves().begin_leaf(is_alone ? 1.0 : weight);
}

void StepExchange::open_scope(std::optional<std::int64_t> leaves) {
  if (leaves) leaves_.require_room(*leaves, 0);
  open(StepMode::micro_batches, leaves.value_or(-1), 0, false);
}

void StepExchange::open_shards(std::int64_t first, std::int64_t leaves) {
  leaves_.require_room_from(first, leaves);
  open(StepMode::micro_batches, leaves, 0, false);
  nodes_.leaves().set_start(first);
}

void StepExchange::open_without_gradient(double weight, bool drained) {
  open(StepMode::no_gradient, weight > 0 ? 1 : 0, weight, drained);
  std::memset(nodes_.boards().mine().slot_table(0), kAbsent, plan().parameters().size());
  buckets_.publish_all();
}

void StepExchange::arrive(const ModelMemory& model) {
  protocol_.require_running();
  TUTTI_CHECK(protocol_.is_open(), "no step to finish");
  hosts_.pause();
  leaves_.finish();
  protocol_.come_to("the end of its shards in");
  protocol_.guarded([&] {
    publish(model);
    const auto published = [this](int r) {
      return protocol_.header(r).published.load(std::memory_order_acquire) >= protocol_.step();
    };
    protocol_.wait_for_all(published, [this] { buckets_.fold_ready(); });
    buckets_.finish();
    model_.compare();
    leaves_.first_look().compare(protocol_.number());
  });
}

void StepExchange::publish(const ModelMemory& model) {
  leaves_.publish();
  buckets_.publish_order();
  model_.publish(model);
  leaves_.first_look().publish();
  protocol_.own_header().arrived = protocol_.job().system().now().time_since_epoch().count();
  nodes_.send();
  protocol_.tell_all(&StepHeader::published, protocol_.step());
}

const StepExchange::Outcome& StepExchange::complete(const std::function<void()>& work) {
  // All reads of others' boards precede `folded`, which lets them write again.
  protocol_.complete([&] {
    work();
    fill_outcome();
    buckets_.adopt_order();
  });
  outcome_.report.waits = protocol_.waits();
  outcome_.report.wait_seconds = protocol_.wait_seconds();
  outcome_.report.exposed_seconds = hosts_.exposed_seconds();
  protocol_.close(true);
  return outcome_;
}

void StepExchange::fill_outcome() {
  outcome_.drained = 0;
  outcome_.buffer_source = model_.buffer_source();
  std::int64_t last = 0;
  auto& report = outcome_.report;
  report = {};
  for (int r = 0; r < group_.size(); ++r) {
    const auto& other = protocol_.header(r);
    outcome_.drained += other.drained != 0;
    if (other.arrived >= last) {
      last = other.arrived;
      report.last_worker = group_.job_rank(r);
    }
  }
  for (std::size_t p = 0; p < plan().parameters().size(); ++p) {
    outcome_.touched[p] = nodes_.touched(p);
    const auto bytes = plan().parameters()[p].node_bytes;
    report.dense_bytes += bytes;
    const bool whole = outcome_.touched[p] != 0 && plan().parameters()[p].is_reduced();
    report.max_sent_bytes += whole ? bytes : 0;
    report.parameters_touched += outcome_.touched[p];
  }
  report.step = protocol_.number();
  report.collectives = 1;
  report.buckets = buckets_.leave_early() ? buckets_.buckets() : 1;
  report.parameters_skipped =
      static_cast<int>(plan().parameters().size()) - report.parameters_touched;
  report.leaves = nodes_.held().leaf_count();
  report.weight = nodes_.held().weight();
  report.nodes_held = protocol_.own_header().node_count;
  report.zero_copy_gradients = nodes_.leaves().zero_copy();
}

}  // namespace tutti
