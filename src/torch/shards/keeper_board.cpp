#include "torch/shards/keeper_board.h"

#include <algorithm>

namespace tutti {

KeeperBoard::KeeperBoard(StepMemory& memory, std::size_t tensors)
    : mine_(tensors), all_(memory.add<Section<Stages>>(tensors)) {}

void KeeperBoard::open() { std::ranges::fill(mine_, Stages()); }

void KeeperBoard::note(std::size_t tensor, int stage) {
  auto& stages = mine_[tensor];
  const auto counted = static_cast<std::uint32_t>(stage) + 1;
  stages.lowest = stages.lowest == 0 ? counted : std::min(stages.lowest, counted);
  stages.highest = std::max(stages.highest, counted);
}

void KeeperBoard::publish() {
  const auto& shared = all_.mine();
  std::ranges::copy(mine_, shared.begin());
  all_.memory().send({{shared.data(), shared.size_bytes()}});
}

std::optional<KeeperBoard::Clash> KeeperBoard::clash() const {
  for (std::size_t t = 0; t < mine_.size(); ++t) {
    Stages all;
    for (const auto& of_worker : all_) {
      const auto& stages = of_worker[t];
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
