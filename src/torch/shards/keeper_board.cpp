#include "torch/shards/keeper_board.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/error.h"

namespace tutti {

KeeperBoard::KeeperBoard(StepMemory& memory, const WrappedModel& model, const std::string& name)
    : model_(model),
      name_(name),
      mine_(model.parameters().size() + model.buffers().size()),
      all_(memory.add<Section<Stages>>(mine_.size())) {}

void KeeperBoard::open(const StepFacts&) { std::ranges::fill(mine_, Stages()); }

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

void KeeperBoard::judge(StepFacts&) {
  for (std::size_t t = 0; t < mine_.size(); ++t) {
    Stages all;
    for (const auto& of_worker : all_) {
      const auto& stages = of_worker[t];
      if (stages.lowest == 0) continue;
      all.lowest = all.lowest == 0 ? stages.lowest : std::min(all.lowest, stages.lowest);
      all.highest = std::max(all.highest, stages.highest);
    }
    if (all.lowest != all.highest) throw InvalidArgument(clash_text(t, all));
  }
}

std::string KeeperBoard::clash_text(std::size_t tensor, const Stages& stages) const {
  const auto one = stages.lowest - 1;
  const auto other = stages.highest - 1;
  const auto parameters = model_.parameters().size();
  if (tensor < parameters) {
    return fmt::format(
        "parameter \"{}\" of Trainer \"{}\" is read first by stage {} in some shards and by stage "
        "{} in others, so that no stage has its gradient of all shards: name it in "
        "Pipeline::shared, and the first stage hands it in",
        model_.name(tensor), name_, one, other);
  }
  return fmt::format(
      "buffer \"{}\" of Trainer \"{}\" is changed by stage {} in some shards and by stage {} in "
      "others: whose value counts is not known. Let one stage change it, or cut the layers so that "
      "one stage does",
      model_.buffers()[tensor - parameters].first, name_, one, other);
}

}  // namespace tutti
