#include "torch/shards/keeper_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/host_copies.h"

namespace tutti {

KeeperBoard::KeeperBoard(const Group& group, std::size_t tensors, const std::string& name)
    : group_(group),
      mine_(tensors),
      memory_(group.allocate(std::max<std::size_t>(tensors, 1) * sizeof(Stages),
                             fmt::format("keepers of tensors of \"{}\"", name))) {}

void KeeperBoard::open() { std::ranges::fill(mine_, Stages()); }

void KeeperBoard::note(std::size_t tensor, int stage) {
  auto& stages = mine_[tensor];
  const auto counted = static_cast<std::uint32_t>(stage) + 1;
  stages.lowest = stages.lowest == 0 ? counted : std::min(stages.lowest, counted);
  stages.highest = std::max(stages.highest, counted);
}

void KeeperBoard::publish() {
  if (mine_.empty()) return;
  const auto bytes = mine_.size() * sizeof(Stages);
  std::memcpy(memory_.data(), mine_.data(), bytes);
  send_to_hosts(group_, memory_.data(), bytes);
}

std::optional<KeeperBoard::Clash> KeeperBoard::clash() const {
  for (std::size_t t = 0; t < mine_.size(); ++t) {
    Stages all;
    for (int r = 0; r < group_.size(); ++r) {
      const auto& stages = of(r)[t];
      if (stages.lowest == 0) continue;
      all.lowest = all.lowest == 0 ? stages.lowest : std::min(all.lowest, stages.lowest);
      all.highest = std::max(all.highest, stages.highest);
    }
    if (all.lowest == all.highest) continue;
    return Clash{t, static_cast<int>(all.lowest) - 1, static_cast<int>(all.highest) - 1};
  }
  return {};
}

}  // namespace tutti
