#include "torch/trainer/trainer_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/group_state.h"
#include "comm/host_copies.h"
#include "memory/memory_need.h"
#include "torch/device/device_arithmetic.h"
#include "torch/model/tensor_at.h"
#include "torch/model/threads.h"
#include "torch/trainer/start_line.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {

TrainerWorld::TrainerWorld(const Group& own_group, torch::nn::Module& own_module,
                           Optimizer own_optimizer, TrainerOptions own_options)
    : group(own_group),
      module(own_module),
      optimizer(std::move(own_optimizer)),
      options(std::move(own_options)),
      kept(options.name) {
  pin_threads(*group.state());
}

void TrainerWorld::move_in(const WrappedModel& model, const Plan& own_plan,
                           const std::vector<std::vector<double>>& initial) {
  if (parameters) return;
  if (!model.device().is_cpu()) {
    tell_of_shared_devices(group, model.device());
  } else if (group.rank() == 0) {
    warn_of_aliases(model, options.name);
  }
  plan = own_plan;
  std::vector<int> states;
  for (const auto& values : initial) states.push_back(static_cast<int>(values.size()));
  shared = std::make_unique<SharedModel>(group, *plan, states, options.ema_decay > 0, options.name);
  require_memory();
  parameters = std::make_unique<SharedParameters>(group, model, *shared, options.deadline);
  if (group.rank() == 0) {
    shared->refresh_masters();
    fill_initial_states(initial);
  }
  copy_to_hosts(group, shared->memory().data(), shared->bytes(), {.label = "optimizer state"});
}

void TrainerWorld::require_memory() const {
  if (!options.memory_limit) return;
  const auto limit = std::max<std::uint64_t>(*options.memory_limit, 1);
  std::vector<int> workers;  // by host
  for (int r = 0; r < group.size(); ++r) {
    const auto host = static_cast<std::size_t>(group.state()->host_of(r));
    workers.resize(std::max(workers.size(), host + 1));
    ++workers[host];
  }
  const auto bytes = static_cast<std::uint64_t>(shared->bytes());
  const auto fewest = static_cast<std::uint64_t>(*std::ranges::min_element(workers));
  const auto each = (bytes + fewest - 1) / fewest;
  if (each <= limit) return;
  throw OutOfMemory(fmt::format(
      "parameters and optimizer state of \"{}\" are {}, {} for each of {} workers of a host, and "
      "memory_limit is {}: {} workers of a host would do",
      options.name, format_bytes(bytes), format_bytes(each), fewest, format_bytes(limit),
      (bytes + limit - 1) / limit));
}

void TrainerWorld::fill_initial_states(const std::vector<std::vector<double>>& initial) {
  for (std::size_t p = 0; p < initial.size(); ++p) {
    const auto type = scalar_type_of(plan->parameters()[p].node_type);
    for (std::size_t k = 0; k < initial[p].size(); ++k) {
      if (initial[p][k] == 0) continue;
      tensor_at(shared->state(p, static_cast<int>(k)), {plan->parameters()[p].spec.count},
                std::nullopt, type)
          .fill_(initial[p][k]);
    }
  }
}

}  // namespace tutti
