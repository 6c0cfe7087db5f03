#pragma once

// An optimizer's state at a chosen offset from a 64-byte boundary, and the formulas of update.h one
// element at a time.

#include <cmath>
#include <vector>

#include "fold_runner.h"
#include "kernels/update.h"

namespace tutti {

template <class T>
struct State {
  State(std::size_t count, std::size_t offset, std::uint64_t seed)
      : State(random(count, seed), offset) {}
  State(const std::array<std::vector<T>, 4>& values, std::size_t offset)
      : gradient(values[0], offset),
        parameter(values[1], offset),
        first(values[2], offset),
        second(values[3], offset),
        values(values) {}

  static std::array<std::vector<T>, 4> random(std::size_t count, std::uint64_t seed) {
    std::array<std::vector<T>, 4> values;
    for (std::size_t k = 0; k < 4; ++k) {
      values[k] = model::random_values<T>(count, 10 * seed + k);
    }
    for (T& second : values[3]) second = std::abs(second);
    return values;
  }

  /// Elements from `begin` on.
  UpdateTarget target(std::size_t begin = 0) {
    const auto from = [&](Placed<T>& stream) { return static_cast<T*>(stream.data()) + begin; };
    return {.dtype = model::DTypeOf<T>::value,
            .gradient = from(gradient),
            .parameter = from(parameter),
            .first = from(first),
            .second = from(second),
            .count = static_cast<std::int64_t>(values[0].size() - begin)};
  }

  /// Against the state at the start with the model's formulas applied.
  void expect(const std::array<std::vector<T>, 4>& expected) const {
    EXPECT_TRUE(gradient.guards_intact() && parameter.guards_intact() && first.guards_intact() &&
                second.guards_intact());
    EXPECT_EQ(gradient.bytes(), Placed<T>(values[0], 0).bytes());
    expect_same(parameter.bytes(), expected[1]);
    expect_same(first.bytes(), expected[2]);
    expect_same(second.bytes(), expected[3]);
  }

  Placed<T> gradient, parameter, first, second;
  std::array<std::vector<T>, 4> values;
};

namespace model {

template <class T>
T gradient_of(T gradient, const UpdateTarget& target) {
  const T g = gradient * static_cast<T>(target.gradient_scale);
  const T bound = static_cast<T>(target.clip_value);
  if (target.clip_value == 0 || std::isnan(g) || std::abs(g) <= bound) return g;
  return std::copysign(bound, g);
}

template <class T>
void update(const SgdRule& rule, const UpdateTarget& target, T gradient, T& p, T& first, T&) {
  T g = gradient_of(gradient, target);
  if (rule.shrink != 0) p = p * static_cast<T>(1 - rule.shrink);
  if (rule.weight_decay != 0) g = g + static_cast<T>(rule.weight_decay) * p;
  if (rule.momentum != 0) {
    const T mu = static_cast<T>(rule.momentum);
    first = rule.starts ? g : mu * first + static_cast<T>(1 - rule.dampening) * g;
    g = rule.nesterov ? g + mu * first : first;
  }
  p = p - static_cast<T>(rule.learning_rate) * g;
}

template <class T>
void update(const AdamRule& rule, const UpdateTarget& target, T gradient, T& p, T& m, T& v) {
  const double t = static_cast<double>(rule.step);
  T g = gradient_of(gradient, target);
  if (rule.shrink != 0) p = p * static_cast<T>(1 - rule.shrink);
  if (rule.weight_decay != 0) g = g + static_cast<T>(rule.weight_decay) * p;
  m = static_cast<T>(rule.beta1) * m + static_cast<T>(1 - rule.beta1) * g;
  v = static_cast<T>(rule.beta2) * v + static_cast<T>(1 - rule.beta2) * g * g;
  const T rate = static_cast<T>(rule.learning_rate / (1 - std::pow(rule.beta1, t)));
  const T root = static_cast<T>(std::sqrt(1 - std::pow(rule.beta2, t)));
  p = p - rate * m / (std::sqrt(v) / root + static_cast<T>(rule.epsilon));
}

template <class T>
void update(const AdagradRule& rule, const UpdateTarget& target, T gradient, T& p, T& sum, T&) {
  const double t = static_cast<double>(rule.step);
  T g = gradient_of(gradient, target);
  if (rule.weight_decay != 0) g = g + static_cast<T>(rule.weight_decay) * p;
  sum = sum + g * g;
  const T rate = static_cast<T>(rule.learning_rate / (1 + (t - 1) * rule.rate_decay));
  p = p - rate * g / (std::sqrt(sum) + static_cast<T>(rule.epsilon));
}

/// {gradient, parameter, first, second} after the update.
template <class T>
std::array<std::vector<T>, 4> updated(const UpdateRule& rule, const UpdateTarget& target,
                                      std::array<std::vector<T>, 4> s) {
  for (std::size_t i = 0; i < s[0].size(); ++i) {
    std::visit([&](const auto& r) { update<T>(r, target, s[0][i], s[1][i], s[2][i], s[3][i]); },
               rule);
  }
  return s;
}

/// Every branch of every rule.
inline std::vector<UpdateRule> all_rules() {
  std::vector<UpdateRule> rules;
  for (const double decay : {0.0, 0.1}) {
    rules.emplace_back(SgdRule{.learning_rate = 0.1, .weight_decay = decay});
    rules.emplace_back(SgdRule{.learning_rate = 0.1, .weight_decay = decay, .shrink = 0.03});
    for (const bool starts : {false, true}) {
      rules.emplace_back(SgdRule{.learning_rate = 0.1,
                                 .momentum = 0.9,
                                 .dampening = 0.3,
                                 .weight_decay = decay,
                                 .starts = starts});
      rules.emplace_back(SgdRule{.learning_rate = 0.1,
                                 .momentum = 0.9,
                                 .weight_decay = decay,
                                 .nesterov = true,
                                 .starts = starts});
    }
    for (const std::int64_t step : {1, 2, 1000}) {
      rules.emplace_back(AdagradRule{
          .learning_rate = 0.01, .rate_decay = 0.1, .weight_decay = decay, .step = step});
      for (const double shrink : {0.0, 0.03}) {
        rules.emplace_back(
            AdamRule{.learning_rate = 0.01, .weight_decay = decay, .shrink = shrink, .step = step});
      }
    }
  }
  return rules;
}

}  // namespace model
}  // namespace tutti
