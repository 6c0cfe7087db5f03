#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "tutti/averaging.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// All buckets in each of the first `warm_up` steps, then in every `period`-th.
class Periodic : public AveragingPolicy {
 public:
  Periodic(std::string_view name, std::int64_t period, std::int64_t warm_up)
      : name_(fmt::format("{}:{}", name, period)), period_(period), warm_up_(warm_up) {
    if (period < 1) throw InvalidArgument(fmt::format("{}: the period must be at least 1", name_));
    if (warm_up < 0) throw InvalidArgument(fmt::format("{}: {} steps of warm-up", name_, warm_up));
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

class OneBucketAtATime : public AveragingPolicy {
 public:
  std::string name() const override { return "partial"; }
  bool due(std::int64_t step, std::int64_t bucket, std::int64_t buckets) const override {
    return (step - 1) % buckets == bucket;
  }
};

class WithBlockMomentum : public Periodic {
 public:
  WithBlockMomentum(std::int64_t period, std::int64_t warm_up, const BlockMomentum& numbers)
      : Periodic("bmuf", period, warm_up), numbers_(numbers) {
    const double momentum = numbers.momentum;
    if (momentum != -1 && !(momentum >= 0 && momentum < 1)) {
      throw InvalidArgument(
          fmt::format("block momentum {}: must be at least 0 and below 1", momentum));
    }
    if (!(numbers.rate > 0) || !std::isfinite(numbers.rate)) {
      throw InvalidArgument(fmt::format("block rate {}: must be finite and above 0", numbers.rate));
    }
  }
  std::string name() const override {
    const auto& momentum = numbers_.momentum;
    return fmt::format("{}, momentum {}, rate {}{}", Periodic::name(),
                       momentum == -1 ? "1 − 1/L" : fmt::format("{}", momentum), numbers_.rate,
                       numbers_.nesterov ? ", Nesterov" : "");
  }
  int states() const override { return 1; }
  void combine(const AveragingRound& round) const override {
    const double momentum = numbers_.momentum == -1
                                ? 1 - 1 / static_cast<double>(round.logical_workers)
                                : numbers_.momentum;
    const auto& kept = round.states[0];
    for (std::size_t i = 0; i < round.values.size(); ++i) {
      const double before = round.before[i];
      const double delta = momentum * kept[i] + numbers_.rate * (round.values[i] - before);
      round.values[i] = before + delta;
      if (numbers_.nesterov) round.values[i] += momentum * (delta - kept[i]);
      kept[i] = delta;
    }
  }

 private:
  BlockMomentum numbers_;
};

[[noreturn]] void refuse_policy(std::string_view text) {
  throw InvalidArgument(fmt::format(
      "averaging \"{}\": there are every-step, partial, local-sgd:K and bmuf:K, K being the steps "
      "between two rounds",
      text));
}

}  // namespace

int AveragingPolicy::states() const { return 0; }
void AveragingPolicy::combine(const AveragingRound&) const {}

AveragingPolicyPointer partial_update() { return std::make_shared<OneBucketAtATime>(); }

AveragingPolicyPointer local_sgd(std::int64_t period, std::int64_t warm_up) {
  return std::make_shared<Periodic>("local-sgd", period, warm_up);
}

AveragingPolicyPointer block_momentum(std::int64_t period, std::int64_t warm_up,
                                      const BlockMomentum& numbers) {
  return std::make_shared<WithBlockMomentum>(period, warm_up, numbers);
}

void validate(const AveragingPolicy& averaging) {
  if (averaging.name().empty()) throw InvalidArgument("an averaging policy must have a name");
  if (averaging.states() < 0) {
    throw InvalidArgument(
        fmt::format("averaging {}: {} states", averaging.name(), averaging.states()));
  }
}

AveragingPolicyPointer averaging_policy_of(std::string_view text) {
  if (text == "every-step") return {};
  if (text == "partial") return partial_update();
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) refuse_policy(text);
  const auto digits = text.substr(colon + 1);
  std::int64_t period = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), period);
  if (error != std::errc() || end != digits.data() + digits.size()) refuse_policy(text);
  const auto name = text.substr(0, colon);
  if (name == "local-sgd") return local_sgd(period);
  if (name == "bmuf") return block_momentum(period);
  refuse_policy(text);
}

std::string_view name_of(StateAtAveraging rule) {
  switch (rule) {
    case StateAtAveraging::keep:
      return "keep";
    case StateAtAveraging::average:
      return "average";
    case StateAtAveraging::reset:
      return "reset";
  }
  return "";
}

}  // namespace tutti
