// Replicas whose averages overlap with the steps that follow, some of which are dropped.

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "chaos/chaos_steps.h"
#include "kernels/rules/registry.h"
#include "sync/averaging/replica_update.h"
#include "sync/gradient_oracle.h"
#include "sync/nodes/logical_workers.h"
#include "sync/plan/assignment.h"
#include "tutti/error.h"

namespace tutti::test::chaos {
namespace {

constexpr std::size_t kCount = 9000;
const UpdateRule kRule = define(Sgd{.lr = 0.5});

/// Every other step sends, the next one applies the mean.
class EveryOther final : public AveragingPolicy {
 public:
  std::string name() const override { return "every-other"; }
  bool due(std::int64_t step, std::int64_t, std::int64_t) const override { return step % 2 == 0; }
  AveragingOverlap overlap() const override { return {.steps = 1, .after = 0, .own = 0.5}; }
};

Values gradient_of(const StepsOfCase& steps, std::int64_t step, std::int64_t logical) {
  return random_values(steps.seed + static_cast<std::uint64_t>(100 * step + logical), kCount);
}

/// What all copies are, by the definition.
class ReplicaModel {
 public:
  explicit ReplicaModel(std::size_t copies) : copies_(copies, Values(kCount)) {}
  void step(const StepsOfCase& steps, std::int64_t step) {
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      const auto gradient = gradient_of(steps, step, static_cast<std::int64_t>(l));
      update(kRule.at({.step = step}), {.dtype = DType::float32,
                                        .gradient = gradient.data(),
                                        .parameter = copies_[l].data(),
                                        .states = {},
                                        .count = kCount});
      if (in_flight_.empty()) continue;
      mix_into(reinterpret_cast<std::byte*>(copies_[l].data()),
               reinterpret_cast<const std::byte*>(in_flight_.data()), DType::float32, kCount, 0.5);
    }
    in_flight_.clear();
    if (step % 2 != 0) return;
    std::vector<std::optional<Values>> all(copies_.begin(), copies_.end());
    in_flight_ = *fold_range(all, 0, all.size());
    for (auto& value : in_flight_) value /= static_cast<float>(copies_.size());
  }
  const Values& copy(int logical) const { return copies_[static_cast<std::size_t>(logical)]; }

 private:
  std::vector<Values> copies_;
  Values in_flight_;  ///< empty where none is
};

Plan plan_of_replicas() {
  const auto plan = plan_of({kCount});
  auto spec = plan.parameters().front().spec;
  spec.is_per_replica = true;
  return {{std::move(spec)}, {}};
}

}  // namespace

/// Each worker has a logical worker of its own.
void run_replicas(const Group& group, const StepsOfCase& steps) {
  Draw draw(steps.seed);
  const int size = group.size();
  const auto logical = logical_workers(size, size);
  std::vector<std::int64_t> cuts(static_cast<std::size_t>(size));
  std::iota(cuts.begin(), cuts.end(), 0);
  StepExchange exchange(group, plan_of_replicas(),
                        {.name = steps.name,
                         .node_boundaries = cuts,
                         .sync_buffers = false,
                         .stays = [](const PlanEntry&, int, std::int64_t) { return true; },
                         .reports_magnitude = true});
  ShardBoard board(exchange.memory());
  SharedModel model(group, exchange.plan(), {0}, false, steps.name);
  ReplicaCopies copies(
      group, exchange.plan(), model, {0}, static_cast<std::size_t>(size), steps.name,
      ReplicaHosts(*group.state(), carriers_of(logical, assign_shards(size, size))));
  ReplicaAveraging averaging(exchange.memory(), exchange.plan(), copies,
                             {.averaging = std::make_shared<EveryOther>(),
                              .fusion = kCount,
                              .initial_states = {{}},
                              .name = steps.name});
  if (group.state()->team().rank == 0) {
    copies.spread(0);
    averaging.restart(0);
  }
  group.barrier();
  ReplicaUpdate own(exchange, board, copies, logical, {kRule}, {}, &averaging);
  ReplicaModel expected(static_cast<std::size_t>(size));
  const auto take = [&](std::int64_t step) {
    exchange.open_shards(group.rank(), 1);
    board.mine() = {};
    exchange.leaves().begin_leaf(1);
    const auto gradient = gradient_of(steps, step, group.rank());
    exchange.leaves().write(0, gradient.data(), true);
    exchange.leaves().end_leaf();
    const double largest = exchange.leaves().magnitude(0);
    board.mine().own[static_cast<std::size_t>(group.rank())].bound += largest;
    board.mine().all.bound += largest;
    steps.reports.chance();
    board.send();
    exchange.arrive({});
  };
  for (std::int64_t step = 1; step <= 6; ++step) {
    const auto failing = draw.below(4 * static_cast<std::uint64_t>(size));
    if (static_cast<std::uint64_t>(group.rank()) == failing) {
      exchange.protocol().fail("a loss of its own");
    } else if (failing < static_cast<std::uint64_t>(size)) {
      try {
        take(step);
        steps.reports.wrong(fmt::format("{}: step {} was not dropped", steps.name, step));
      } catch (const PeerFailed&) {
      }
    }
    take(step);
    own.collect_nodes(1);
    own.judge(step);
    exchange.complete([&] { own.apply(1); });
    own.commit();
    expected.step(steps, step);
    const auto& copy = copies.of(static_cast<std::size_t>(group.rank()));
    if (std::memcmp(copy.value(0), expected.copy(group.rank()).data(), kCount * sizeof(float)) !=
        0) {
      steps.reports.wrong(fmt::format("{}: the copy after step {}", steps.name, step));
    }
  }
}

}  // namespace tutti::test::chaos
