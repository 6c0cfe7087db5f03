#pragma once

// An optimizer's state at a chosen offset from a 64-byte boundary, and the formulas of all rules,
// one element at a time.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "fold_runner.h"
#include "kernels/rules/registry.h"

namespace tutti {

/// Tensors of state that these tests have of a parameter: as many as some rule uses.
inline constexpr std::size_t kModelStates = 3;

/// Gradient, parameter and states, element by element.
template <class T>
using StateValues = std::array<std::vector<T>, 2 + kModelStates>;

template <class T>
struct State {
  State(std::size_t count, std::size_t offset, std::uint64_t seed)
      : State(random(count, seed), offset) {}
  State(const StateValues<T>& values, std::size_t offset)
      : gradient(values[0], offset), parameter(values[1], offset), values(values) {
    for (std::size_t k = 0; k < kModelStates; ++k) states.emplace_back(values[2 + k], offset);
  }

  /// What may be a mean of squares is one, but for a few elements of the first state.
  static StateValues<T> random(std::size_t count, std::uint64_t seed) {
    StateValues<T> values;
    for (std::size_t k = 0; k < values.size(); ++k) {
      values[k] = model::random_values<T>(count, 10 * seed + k);
      for (std::size_t i = 0; i < count && k >= 2; ++i) {
        if (k > 2 || i % 4 != 0) values[k][i] = std::abs(values[k][i]);
      }
    }
    return values;
  }

  /// Elements from `begin` on.
  UpdateTarget target(std::size_t begin = 0) {
    const auto from = [&](Placed<T>& stream) { return static_cast<T*>(stream.data()) + begin; };
    UpdateTarget target{.dtype = model::DTypeOf<T>::value,
                        .gradient = from(gradient),
                        .parameter = from(parameter),
                        .count = static_cast<std::int64_t>(values[0].size() - begin)};
    for (std::size_t k = 0; k < kModelStates; ++k) target.states[k] = from(states[k]);
    return target;
  }

  /// Against the state at the start with the model's formulas applied.
  void expect(const StateValues<T>& expected) const {
    EXPECT_TRUE(guards_intact());
    EXPECT_EQ(gradient.bytes(), Placed<T>(values[0], 0).bytes());
    expect_same(parameter.bytes(), expected[1]);
    for (std::size_t k = 0; k < kModelStates; ++k) expect_same(states[k].bytes(), expected[2 + k]);
  }

  /// That parameter and states have the bytes of the other ones.
  void expect_equal(const State& other) const {
    EXPECT_EQ(parameter.bytes(), other.parameter.bytes());
    for (std::size_t k = 0; k < kModelStates; ++k) {
      EXPECT_EQ(states[k].bytes(), other.states[k].bytes()) << "state " << k;
    }
  }

  bool guards_intact() const {
    return gradient.guards_intact() && parameter.guards_intact() &&
           std::ranges::all_of(states, [](const auto& one) { return one.guards_intact(); });
  }

  Placed<T> gradient, parameter;
  std::vector<Placed<T>> states;
  StateValues<T> values;
};

/// One update by a rule, in the words of a user.
struct RuleCase {
  Optimizer::Rule rule;
  UpdateMoment moment = {};

  PreparedUpdate prepared() const { return update_rule_of(rule)->at(moment); }
};

namespace model {

template <class T>
T gradient_of(T gradient, const UpdateTarget& target) {
  const T g = gradient * static_cast<T>(target.gradient_scale);
  const T bound = static_cast<T>(target.clip_value);
  if (target.clip_value == 0 || std::isnan(g) || std::abs(g) <= bound) return g;
  return std::copysign(bound, g);
}

/// 1 − κ of a decoupled decay.
template <class T, class Any>
T kept_by(const Any& rule, const UpdateMoment& moment) {
  const double rate = rule.decay == Decay::times_rate ? rule.lr : 1;
  return static_cast<T>(1 - rate * rule.weight_decay * moment.rate_factor);
}

template <class T>
void update(const Sgd& rule, const UpdateMoment& moment, T g, T& p, std::span<T> states) {
  const T decay = static_cast<T>(rule.weight_decay);
  if (rule.decay != Decay::l2) p = p * kept_by<T>(rule, moment);
  if (rule.decay == Decay::l2 && decay != 0) g = g + decay * p;
  if (rule.momentum != 0) {
    const T mu = static_cast<T>(rule.momentum);
    const bool starts = moment.step == 1 && !moment.row_sparse;
    states[0] = starts ? g : mu * states[0] + static_cast<T>(1 - rule.dampening) * g;
    g = rule.nesterov ? g + mu * states[0] : states[0];
  }
  p = p - static_cast<T>(rule.lr * moment.rate_factor) * g;
}

template <class T>
void update(const Adam& rule, const UpdateMoment& moment, T g, T& p, std::span<T> states) {
  const double t = static_cast<double>(moment.step);
  if (rule.weight_decay != 0) g = g + static_cast<T>(rule.weight_decay) * p;
  T& m = states[0];
  T& v = states[1];
  m = static_cast<T>(rule.beta1) * m + static_cast<T>(1 - rule.beta1) * g;
  v = static_cast<T>(rule.beta2) * v + static_cast<T>(1 - rule.beta2) * g * g;
  const T rate = static_cast<T>(rule.lr * moment.rate_factor / (1 - std::pow(rule.beta1, t)));
  const T root = static_cast<T>(std::sqrt(1 - std::pow(rule.beta2, t)));
  if (rule.amsgrad) states[2] = std::max(states[2], v);
  const T below = rule.amsgrad ? states[2] : v;
  p = p - rate * m / (std::sqrt(below) / root + static_cast<T>(rule.eps));
}

template <class T>
void update(const AdamW& rule, const UpdateMoment& moment, T g, T& p, std::span<T> states) {
  p = p * kept_by<T>(rule, moment);
  update(Adam{.lr = rule.lr,
              .beta1 = rule.beta1,
              .beta2 = rule.beta2,
              .eps = rule.eps,
              .amsgrad = rule.amsgrad},
         moment, g, p, states);
}

template <class T>
void update(const Adagrad& rule, const UpdateMoment& moment, T g, T& p, std::span<T> states) {
  const double t = static_cast<double>(moment.step);
  if (rule.weight_decay != 0) g = g + static_cast<T>(rule.weight_decay) * p;
  states[0] = states[0] + g * g;
  const T rate = static_cast<T>(rule.lr * moment.rate_factor / (1 + (t - 1) * rule.lr_decay));
  p = p - rate * g / (std::sqrt(states[0]) + static_cast<T>(rule.eps));
}

template <class T>
void update(const RmsProp& rule, const UpdateMoment& moment, T g, T& p, std::span<T> states) {
  const T alpha = static_cast<T>(rule.alpha);
  const T fresh = static_cast<T>(1 - rule.alpha);
  const T rate = static_cast<T>(rule.lr * moment.rate_factor);
  if (rule.weight_decay != 0) g = g + static_cast<T>(rule.weight_decay) * p;
  states[0] = alpha * states[0] + fresh * g * g;
  T spread = states[0];
  if (rule.centered) {
    T& mean = states[rule.momentum != 0 ? 2 : 1];
    mean = alpha * mean + fresh * g;
    spread = spread - mean * mean;
    if (spread < 0) spread = 0;
  }
  const T below = std::sqrt(spread) + static_cast<T>(rule.eps);
  if (rule.momentum == 0) {
    p = p - rate * g / below;
    return;
  }
  states[1] = static_cast<T>(rule.momentum) * states[1] + g / below;
  p = p - rate * states[1];
}

template <class T>
void update(const Lion& rule, const UpdateMoment& moment, T g, T& p, std::span<T> states) {
  T& m = states[0];
  p = p * static_cast<T>(1 - rule.lr * rule.weight_decay * moment.rate_factor);
  const T c = static_cast<T>(rule.beta1) * m + static_cast<T>(1 - rule.beta1) * g;
  const T sign = c == 0 || std::isnan(c) ? c : std::copysign(T{1}, c);
  p = p - static_cast<T>(rule.lr * moment.rate_factor) * sign;
  m = static_cast<T>(rule.beta2) * m + static_cast<T>(1 - rule.beta2) * g;
}

template <class T>
void update(const TorchOptim&, const UpdateMoment&, T, T&, std::span<T>) {
  FAIL() << "a rule without a kernel";
}

/// {gradient, parameter, states …} after the update.
template <class T>
StateValues<T> updated(const RuleCase& by, const UpdateTarget& target, StateValues<T> s) {
  for (std::size_t i = 0; i < s[0].size(); ++i) {
    std::array<T, kModelStates> states;
    for (std::size_t k = 0; k < kModelStates; ++k) states[k] = s[2 + k][i];
    const T g = gradient_of(s[0][i], target);
    std::visit([&](const auto& r) { update<T>(r, by.moment, g, s[1][i], states); }, by.rule);
    for (std::size_t k = 0; k < kModelStates; ++k) s[2 + k][i] = states[k];
  }
  return s;
}

/// Every branch of every rule.
inline std::vector<RuleCase> all_rules() {
  std::vector<RuleCase> rules;
  for (const double decay : {0.0, 0.1}) {
    rules.push_back({Sgd{.lr = 0.1, .weight_decay = decay}});
    rules.push_back({Sgd{.lr = 0.1, .weight_decay = decay, .decay = Decay::times_schedule},
                     {.rate_factor = 0.3}});
    for (const std::int64_t step : {1, 2}) {
      rules.push_back({Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = decay},
                       {.step = step}});
      rules.push_back({Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = decay, .nesterov = true},
                       {.step = step}});
    }
    rules.push_back(
        {Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = decay}, {.step = 1, .row_sparse = true}});
    for (const double momentum : {0.0, 0.9}) {
      for (const bool centered : {false, true}) {
        rules.push_back({RmsProp{.lr = 0.01,
                                 .alpha = 0.9,
                                 .weight_decay = decay,
                                 .momentum = momentum,
                                 .centered = centered},
                         {.rate_factor = 0.3}});
      }
    }
    rules.push_back({Lion{.lr = 0.01, .weight_decay = decay}, {.step = 3, .rate_factor = 0.3}});
    for (const std::int64_t step : {1, 2, 1000}) {
      const UpdateMoment moment{.step = step, .rate_factor = step == 2 ? 0.3 : 1};
      rules.push_back({Adagrad{.lr = 0.01, .lr_decay = 0.1, .weight_decay = decay}, moment});
      rules.push_back({Adam{.lr = 0.01, .weight_decay = decay}, moment});
      rules.push_back({AdamW{.lr = 0.01, .weight_decay = decay}, moment});
      rules.push_back({Adam{.lr = 0.01, .weight_decay = decay, .amsgrad = true}, moment});
      rules.push_back({AdamW{.lr = 0.01, .weight_decay = decay, .amsgrad = true}, moment});
      rules.push_back(
          {AdamW{.lr = 0.01, .weight_decay = decay, .decay = Decay::times_schedule}, moment});
    }
  }
  return rules;
}

}  // namespace model
}  // namespace tutti
