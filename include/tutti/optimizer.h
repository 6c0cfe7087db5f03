#pragma once

// What moves the parameters of a Trainer: a rule for each, with the formulas and defaults of
// torch.optim, or of its paper, applied by fused kernels (kernels/rules/ has every formula and its
// source).
//
//   tutti::Adam{.lr = 3e-4}
//   tutti::Optimizer(tutti::AdamW{.lr = 3e-4}).group(is_bias, tutti::AdamW{.lr = 3e-4,
//   .weight_decay = 0})
//
// A parameter that no shard touched is left alone: value, weight decay, momentum and step count. Of
// a row-sparse parameter the same holds for each row, but that steps are counted once for all rows
// (TrainerOptions::row_sparse).
//
// Threads: values. Failure: InvalidArgument for numbers that make no sense.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace tutti {

/// What a weight decay λ does to a parameter p before its update, with the learning rate η and the
/// factor s of the schedule.
enum class Decay : std::uint8_t {
  l2,              ///< g ← g + λ·p: passes through momentum and moments
  times_rate,      ///< p ← p·(1 − s·η·λ): torch.optim.AdamW
  times_schedule,  ///< p ← p·(1 − s·λ): SGDW and AdamW as published (Loshchilov and Hutter 2019)
};

/// Stochastic gradient descent as torch.optim.SGD.
struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  Decay decay = Decay::l2;
  bool nesterov = false;
};

/// Kingma and Ba 2015, as torch.optim.Adam.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< Decay::l2
  bool amsgrad = false;     ///< Reddi, Kale and Kumar 2018: divides by the largest second moment
};

/// Loshchilov and Hutter 2019, as torch.optim.AdamW.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  Decay decay = Decay::times_rate;  ///< not l2: that is Adam
  bool amsgrad = false;             ///< as for Adam
};

/// Duchi, Hazan and Singer 2011, as torch.optim.Adagrad.
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;  ///< Decay::l2
  double initial_sum = 0;   ///< of squares: torch's initial_accumulator_value
  double eps = 1e-10;
};

/// Tieleman and Hinton 2012, as torch.optim.RMSprop.
struct RmsProp {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  ///< Decay::l2
  double momentum = 0;
  bool centered = false;  ///< Graves 2013; a variance that rounding makes negative counts as 0
};

/// Chen et al. 2023, algorithm 2: every element moves by the learning rate, so take a tenth of
/// Adam's, and ten times its weight decay.
struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  ///< Decay::times_rate
};

class TorchRule;

/// One of torch's optimizers, made by torch_optimizer(): tutti/torch_optimizer.h.
struct TorchOptim {
  std::string text;  ///< name and options
  std::shared_ptr<const TorchRule> rule;
};

namespace detail {
template <class Type, class Variant>
inline constexpr bool kIsOneOf = false;
template <class Type, class... Alternatives>
inline constexpr bool kIsOneOf<Type, std::variant<Alternatives...>> =
    (std::is_same_v<Type, Alternatives> || ...);
}  // namespace detail

class Optimizer {
 public:
  using Rule = std::variant<Sgd, Adam, AdamW, Adagrad, RmsProp, Lion, TorchOptim>;
  using Where = std::function<bool(const std::string& name)>;

  // Not explicit: a rule is an optimizer of one group.
  template <class OneRule>
  requires detail::kIsOneOf<OneRule, Rule> Optimizer(const OneRule& rule) : Optimizer(Rule(rule)) {}
  /// InvalidArgument for a learning rate, decay, momentum, sum or ε that is negative or not finite,
  /// betas or an α outside [0, 1), a dampening that is not finite, Nesterov's form without momentum
  /// or with dampening, AdamW with Decay::l2, an empty TorchOptim.
  Optimizer(const Rule& rule);

  /// Parameters for which `where(name)` holds, and no earlier group's did, follow this rule. One
  /// of several names of a parameter (tied weights) is enough.
  Optimizer& group(Where where, const Rule& rule);

  /// The rules of the groups, in their order, and last that of all other parameters.
  std::vector<Rule> rules() const;
  const Rule& rule_of(const std::string& parameter) const;
  /// The rule of a parameter that is registered under these names.
  const Rule& rule_of(const std::vector<std::string>& names) const;
  /// Groups, counted from 0, whose rule none of these parameters follows; each has its names.
  std::vector<std::size_t> unused_groups(
      const std::vector<std::vector<std::string>>& parameters) const;

 private:
  std::size_t group_of(const std::vector<std::string>& names) const;

  Rule rule_;
  std::vector<std::pair<Where, Rule>> groups_;
};

/// "Adam lr 0.0003 beta1 0.9 beta2 0.999 eps 1e-08 weight_decay 0": in logs, plans and checkpoints.
std::string text_of(const Optimizer::Rule& rule);

}  // namespace tutti
