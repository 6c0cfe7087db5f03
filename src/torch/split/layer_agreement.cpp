#include "torch/split/layer_agreement.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstddef>
#include <limits>

#include <nlohmann/json.hpp>

#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "memory/memory_need.h"
#include "tutti/error.h"

namespace tutti {

void require_same_layer(const Group& group, const std::string& what, const RunFingerprint& facts) {
  const auto all = gather_texts(group, nlohmann::json(facts).dump(), {.label = what});
  for (int member = 1; member < group.size(); ++member) {
    if (all[static_cast<std::size_t>(member)] == all[0]) continue;
    const auto facts_of = [&](std::size_t m) {
      return nlohmann::json::parse(all[m]).get<RunFingerprint>();
    };
    const auto first = fmt::format("on rank {}", group.job_rank(0));
    const auto second = fmt::format("on rank {}", group.job_rank(member));
    throw Mismatch(fmt::format("{}: workers disagree about the layer: {}", what,
                               facts_diff(facts_of(0), facts_of(static_cast<std::size_t>(member)),
                                          {first.c_str(), second.c_str()})));
  }
}

std::uint64_t agree_on_layer(const Group& group, const std::string& what, RunFingerprint facts,
                             std::optional<std::uint64_t> seed) {
  facts["seed"] = seed ? std::to_string(*seed) : "drawn";
  require_same_layer(group, what, facts);
  auto agreed = seed ? static_cast<std::int64_t>(*seed)
                     : torch::randint(std::numeric_limits<std::int64_t>::max(), {1}, torch::kInt64)
                           .item<std::int64_t>();
  group.broadcast({&agreed, 1, DType::int64}, 0, {.label = what});
  return static_cast<std::uint64_t>(agreed);
}

void require_room(const Group& group, const std::string& what, std::uint64_t largest_member) {
  const auto refusal =
      refuse_memory(group.state()->job().system(), {.bytes_per_worker = largest_member,
                                                    .workers = group.state()->team().size(),
                                                    .what = what,
                                                    .is_private = true});
  const auto all = gather_texts(group, refusal, {.label = "memory"});
  if (!refusal.empty()) throw OutOfMemory(refusal);
  for (int member = 0; member < group.size(); ++member) {
    const auto& text = all[static_cast<std::size_t>(member)];
    if (text.empty()) continue;
    throw OutOfMemory(fmt::format("rank {}: {}", group.job_rank(member), text));
  }
}

}  // namespace tutti
