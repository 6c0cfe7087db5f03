#include "sync/step/shard_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>

namespace tutti {
namespace {

/// Address space only: memory is used only where it is written.
constexpr std::size_t kNotesBytes = std::size_t{64} << 20;

}  // namespace

void GradientFacts::note_bad(std::int64_t shard, std::int64_t parameter) {
  if (bad_shard >= 0 && bad_shard < shard) return;
  bad_parameter = bad_shard == shard ? std::min(bad_parameter, parameter) : parameter;
  bad_shard = shard;
}

std::string refusal_of(const GradientFacts& facts, const Plan& plan) {
  if (facts.bad_shard < 0) return "";
  const auto& entry = plan.parameters()[static_cast<std::size_t>(facts.bad_parameter)];
  return fmt::format("the gradient of \"{}\" in shard {} is not finite", entry.spec.name,
                     facts.bad_shard);
}

bool may_overflow(const GradientFacts& facts, double divisor) {
  return !(facts.bound < FLT_MAX / 2 && facts.bound / divisor < FLT_MAX / 2);
}

ShardBoard::Part::Part(Sections& at) : header(at), notes(at, kNotesBytes) {}

ShardBoard::ShardBoard(StepMemory& memory) : parts_(memory.add<Part>()) {
  mine() = {};
  memory.group().barrier({.label = "shard board"});
}

template <class Pick>
GradientFacts ShardBoard::reduced(const Pick& pick) const {
  GradientFacts all;
  for (int r = 0; r < size(); ++r) {
    const GradientFacts& one = pick(of(r));
    all.bound += one.bound;
    const bool earlier = all.bad_shard < 0 || one.bad_shard < all.bad_shard;
    if (one.bad_shard < 0 || !earlier) continue;
    all.bad_shard = one.bad_shard;
    all.bad_parameter = one.bad_parameter;
  }
  return all;
}

GradientFacts ShardBoard::facts() const {
  return reduced([](const ShardHeader& header) -> auto& { return header.all; });
}

GradientFacts ShardBoard::facts_of(std::size_t logical) const {
  return reduced([&](const ShardHeader& header) -> auto& { return header.own[logical]; });
}

void ShardBoard::send() {
  parts_.memory().send({published(mine()), {notes_area().data(), mine().notes}});
}

}  // namespace tutti
