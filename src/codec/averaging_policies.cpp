#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "base/number.h"
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

void require_momentum(double momentum, std::string_view what) {
  if (momentum >= 0 && momentum < 1) return;
  throw InvalidArgument(fmt::format("{} {}: must be at least 0 and below 1", what, momentum));
}

void require_rate(double rate, std::string_view what) {
  if (rate > 0 && std::isfinite(rate)) return;
  throw InvalidArgument(fmt::format("{} {}: must be finite and above 0", what, rate));
}

/// With `numbers.momentum` as it is, −1 too.
void step_with_momentum(const AveragingRound& round, const BlockMomentum& numbers) {
  const auto& kept = round.states[0];
  for (std::size_t i = 0; i < round.values.size(); ++i) {
    const double before = round.before[i];
    const double delta = numbers.momentum * kept[i] + numbers.rate * (round.values[i] - before);
    round.values[i] = before + delta;
    if (numbers.nesterov) round.values[i] += numbers.momentum * (delta - kept[i]);
    kept[i] = delta;
  }
}

class WithBlockMomentum : public Periodic {
 public:
  WithBlockMomentum(std::int64_t period, std::int64_t warm_up, const BlockMomentum& numbers)
      : Periodic("bmuf", period, warm_up), numbers_(numbers) {
    if (numbers.momentum != -1) require_momentum(numbers.momentum, "block momentum");
    require_rate(numbers.rate, "block rate");
  }
  std::string name() const override {
    const auto& momentum = numbers_.momentum;
    return fmt::format("{}, momentum {}, rate {}{}", Periodic::name(),
                       momentum == -1 ? "1 − 1/L" : fmt::format("{}", momentum), numbers_.rate,
                       numbers_.nesterov ? ", Nesterov" : "");
  }
  int states() const override { return 1; }
  void combine(const AveragingRound& round) const override {
    auto numbers = numbers_;
    if (numbers.momentum == -1) {
      numbers.momentum = 1 - 1 / static_cast<double>(round.logical_workers);
    }
    step_with_momentum(round, numbers);
  }

 private:
  BlockMomentum numbers_;
};

void require_own(double own, std::string_view name) {
  if (own >= 0 && own < 1) return;
  throw InvalidArgument(
      fmt::format("{}: a share of {} of its own copy: must be at least 0 and below 1", name, own));
}

/// Its name is its text.
class WithOuterStep : public AveragingPolicy {
 public:
  WithOuterStep(std::int64_t period, const Diloco& numbers)
      : period_(period), warm_up_(numbers.warm_up.value_or(period)), numbers_(numbers) {
    if (period < 1) {
      throw InvalidArgument(fmt::format("diloco:{}: the period must be at least 1", period));
    }
    require_rate(numbers.rate, "outer rate");
    require_momentum(numbers.momentum, "outer momentum");
    if (numbers.fragments < 1 || numbers.fragments > period) {
      throw InvalidArgument(
          fmt::format("diloco:{}: {} fragments: must be at least 1, and at most one for each step "
                      "of the period",
                      period, numbers.fragments));
    }
    if (warm_up_ < 0) {
      throw InvalidArgument(fmt::format("diloco:{}: {} steps of warm-up", period, warm_up_));
    }
    if (numbers.overlap < 0 || numbers.overlap * numbers.fragments >= period) {
      throw InvalidArgument(
          fmt::format("diloco:{}: an overlap of {} steps: must be at least 0, and below the period "
                      "divided by the number of fragments, {}",
                      period, numbers.overlap, numbers.fragments));
    }
    require_own(numbers.own, fmt::format("diloco:{}", period));
  }
  std::string name() const override {
    auto name =
        fmt::format("diloco:{},{},{},fragments={},warm-up={}{}", period_, numbers_.rate,
                    numbers_.momentum, numbers_.fragments, warm_up_, numbers_.int8 ? ",int8" : "");
    if (numbers_.overlap > 0) {
      name += fmt::format(",overlap={},own={}", numbers_.overlap, numbers_.own);
    }
    return name;
  }
  std::int64_t fragments() const override { return numbers_.fragments; }
  bool due(std::int64_t step, std::int64_t fragment, std::int64_t fragments) const override {
    if (step <= warm_up_) return true;
    return ((fragment + 1) * period_ / fragments - (step - warm_up_)) % period_ == 0;
  }
  int states() const override { return 1; }
  bool sends_int8() const override { return numbers_.int8; }
  AveragingOverlap overlap() const override {
    return {.steps = numbers_.overlap, .after = warm_up_, .own = numbers_.own};
  }
  void combine(const AveragingRound& round) const override {
    if (round.step <= warm_up_) return;
    step_with_momentum(round,
                       {.momentum = numbers_.momentum, .rate = numbers_.rate, .nesterov = true});
  }

 private:
  std::int64_t period_;
  std::int64_t warm_up_;
  Diloco numbers_;
};

[[noreturn]] void refuse_policy(std::string_view text) {
  throw InvalidArgument(
      fmt::format("averaging \"{}\": there are every-step, partial, local-sgd:K, bmuf:K and "
                  "diloco:K[,rate[,momentum]][,fragments=P][,warm-up=W][,int8][,overlap=T][,own=A],"
                  " K being the steps "
                  "between two rounds",
                  text));
}

template <class Number>
Number policy_number_of(std::string_view text, std::string_view digits) {
  const auto number = parse_number<Number>(digits);
  if (!number) refuse_policy(text);
  return *number;
}

/// `numbers` are what follows "diloco:" in `text`.
AveragingPolicyPointer diloco_of(std::string_view text, std::string_view numbers) {
  constexpr std::string_view kFragments = "fragments=";
  constexpr std::string_view kWarmUp = "warm-up=";
  constexpr std::string_view kOverlap = "overlap=";
  constexpr std::string_view kOwn = "own=";
  std::optional<std::int64_t> period, fragments, warm_up, overlap;
  std::optional<double> rate, momentum, own;
  bool int8 = false;
  for (bool more = true; more;) {
    const auto comma = numbers.find(',');
    const auto word = numbers.substr(0, comma);
    more = comma != std::string_view::npos;
    numbers.remove_prefix(more ? comma + 1 : numbers.size());
    if (!period) {
      period = policy_number_of<std::int64_t>(text, word);
    } else if (word.starts_with(kFragments) && !fragments) {
      fragments = policy_number_of<std::int64_t>(text, word.substr(kFragments.size()));
    } else if (word.starts_with(kWarmUp) && !warm_up) {
      warm_up = policy_number_of<std::int64_t>(text, word.substr(kWarmUp.size()));
    } else if (word == "int8" && !int8) {
      int8 = true;
    } else if (word.starts_with(kOverlap) && !overlap) {
      overlap = policy_number_of<std::int64_t>(text, word.substr(kOverlap.size()));
    } else if (word.starts_with(kOwn) && !own) {
      own = policy_number_of<double>(text, word.substr(kOwn.size()));
    } else if (fragments || warm_up || momentum || int8 || overlap || own) {
      refuse_policy(text);
    } else {
      (rate ? momentum : rate) = policy_number_of<double>(text, word);
    }
  }
  const Diloco usual;
  return diloco(*period, {.rate = rate.value_or(usual.rate),
                          .momentum = momentum.value_or(usual.momentum),
                          .fragments = fragments.value_or(usual.fragments),
                          .warm_up = warm_up,
                          .int8 = int8,
                          .overlap = overlap.value_or(usual.overlap),
                          .own = own.value_or(usual.own)});
}

}  // namespace

int AveragingPolicy::states() const { return 0; }
bool AveragingPolicy::sends_int8() const { return false; }
AveragingOverlap AveragingPolicy::overlap() const { return {}; }
void AveragingPolicy::combine(const AveragingRound&) const {}
std::int64_t AveragingPolicy::fragments() const { return 0; }

AveragingPolicyPointer partial_update() { return std::make_shared<OneBucketAtATime>(); }

AveragingPolicyPointer local_sgd(std::int64_t period, std::int64_t warm_up) {
  return std::make_shared<Periodic>("local-sgd", period, warm_up);
}

AveragingPolicyPointer block_momentum(std::int64_t period, std::int64_t warm_up,
                                      const BlockMomentum& numbers) {
  return std::make_shared<WithBlockMomentum>(period, warm_up, numbers);
}

AveragingPolicyPointer diloco(std::int64_t period, const Diloco& numbers) {
  return std::make_shared<WithOuterStep>(period, numbers);
}

void validate(const AveragingPolicy& averaging) {
  if (averaging.name().empty()) throw InvalidArgument("an averaging policy must have a name");
  if (averaging.states() < 0) {
    throw InvalidArgument(
        fmt::format("averaging {}: {} states", averaging.name(), averaging.states()));
  }
  if (averaging.fragments() < 0) {
    throw InvalidArgument(
        fmt::format("averaging {}: {} fragments", averaging.name(), averaging.fragments()));
  }
  const auto overlap = averaging.overlap();
  if (overlap.steps < 0) {
    throw InvalidArgument(
        fmt::format("averaging {}: an overlap of {} steps", averaging.name(), overlap.steps));
  }
  require_own(overlap.own, fmt::format("averaging {}", averaging.name()));
}

AveragingPolicyPointer averaging_policy_of(std::string_view text) {
  if (text == "every-step") return {};
  if (text == "partial") return partial_update();
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) refuse_policy(text);
  const auto name = text.substr(0, colon);
  const auto numbers = text.substr(colon + 1);
  if (name == "diloco") return diloco_of(text, numbers);
  const auto period = policy_number_of<std::int64_t>(text, numbers);
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
