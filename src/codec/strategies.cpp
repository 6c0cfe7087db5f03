#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "tutti/error.h"
#include "tutti/strategy.h"

namespace tutti {
namespace {

/// All groups in each of the first `warm_up` steps, then in every `period`-th.
class Periodic : public Strategy {
 public:
  Periodic(std::string_view name, std::int64_t period, std::int64_t warm_up)
      : name_(fmt::format("{}:{}", name, period)), period_(period), warm_up_(warm_up) {
    if (period < 1) throw BadInput(fmt::format("{}: the period must be at least 1", name_));
    if (warm_up < 0) throw BadInput(fmt::format("{}: {} steps of warm-up", name_, warm_up));
    if (warm_up > 0) name_ += fmt::format(" after {}", warm_up);
  }
  std::string name() const override { return name_; }
  bool due(std::int64_t step, std::int64_t, std::int64_t) const override {
    return step <= warm_up_ || (step - warm_up_) % period_ == 0;
  }

 private:
  std::string name_;
  std::int64_t period_;
  std::int64_t warm_up_;
};

class OneGroupAtATime : public Strategy {
 public:
  std::string name() const override { return "partial"; }
  bool due(std::int64_t step, std::int64_t group, std::int64_t groups) const override {
    return (step - 1) % groups == group;
  }
};

class WithBlockMomentum : public Periodic {
 public:
  WithBlockMomentum(std::int64_t period, std::int64_t warm_up, const BlockMomentum& numbers)
      : Periodic("bmuf", period, warm_up), numbers_(numbers) {
    const double momentum = numbers.momentum;
    if (momentum != -1 && !(momentum >= 0 && momentum < 1)) {
      throw BadInput(fmt::format("block momentum {}: must be at least 0 and below 1", momentum));
    }
    if (!(numbers.rate > 0) || !std::isfinite(numbers.rate)) {
      throw BadInput(fmt::format("block rate {}: must be finite and above 0", numbers.rate));
    }
  }
  std::string name() const override {
    const auto& momentum = numbers_.momentum;
    return fmt::format("{}, momentum {}, rate {}{}", Periodic::name(),
                       momentum == -1 ? "1 − 1/L" : fmt::format("{}", momentum), numbers_.rate,
                       numbers_.nesterov ? ", Nesterov" : "");
  }
  int states() const override { return 1; }
  void combine(const Meeting& meeting) const override {
    const double momentum = numbers_.momentum == -1
                                ? 1 - 1 / static_cast<double>(meeting.logical_workers)
                                : numbers_.momentum;
    const auto& kept = meeting.states[0];
    for (std::size_t i = 0; i < meeting.values.size(); ++i) {
      const double before = meeting.before[i];
      const double delta = momentum * kept[i] + numbers_.rate * (meeting.values[i] - before);
      meeting.values[i] = before + delta;
      if (numbers_.nesterov) meeting.values[i] += momentum * (delta - kept[i]);
      kept[i] = delta;
    }
  }

 private:
  BlockMomentum numbers_;
};

[[noreturn]] void refuse(std::string_view text) {
  throw BadInput(fmt::format(
      "strategy \"{}\": there are every-step, partial, local-sgd:K and bmuf:K, K being the steps "
      "between two meetings",
      text));
}

}  // namespace

int Strategy::states() const { return 0; }
void Strategy::combine(const Meeting&) const {}

StrategyPointer partial_update() { return std::make_shared<OneGroupAtATime>(); }

StrategyPointer local_sgd(std::int64_t period, std::int64_t warm_up) {
  return std::make_shared<Periodic>("local-sgd", period, warm_up);
}

StrategyPointer block_momentum(std::int64_t period, std::int64_t warm_up,
                               const BlockMomentum& numbers) {
  return std::make_shared<WithBlockMomentum>(period, warm_up, numbers);
}

void require_sense(const Strategy& strategy) {
  if (strategy.name().empty()) throw BadInput("a strategy must have a name");
  if (strategy.states() < 0) {
    throw BadInput(fmt::format("strategy {}: {} states", strategy.name(), strategy.states()));
  }
}

StrategyPointer strategy_of(std::string_view text) {
  if (text == "every-step") return {};
  if (text == "partial") return partial_update();
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) refuse(text);
  const auto digits = text.substr(colon + 1);
  std::int64_t period = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), period);
  if (error != std::errc() || end != digits.data() + digits.size()) refuse(text);
  const auto name = text.substr(0, colon);
  if (name == "local-sgd") return local_sgd(period);
  if (name == "bmuf") return block_momentum(period);
  refuse(text);
}

std::string_view name_of(MeetingState rule) {
  switch (rule) {
    case MeetingState::keep:
      return "keep";
    case MeetingState::average:
      return "average";
    case MeetingState::reset:
      return "reset";
  }
  return "";
}

}  // namespace tutti
