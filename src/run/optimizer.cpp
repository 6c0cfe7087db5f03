#include "tutti/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/error.h"

namespace tutti {
namespace {

void require(bool holds, const Optimizer::Rule& rule, std::string_view what) {
  if (!holds) throw InvalidArgument(fmt::format("{}: {}", text_of(rule), what));
}

bool is_size(double value) { return std::isfinite(value) && value >= 0; }
bool is_factor(double value) { return value >= 0 && value < 1; }

std::string_view text_of(Decay decay) {
  switch (decay) {
    case Decay::l2:
      return "l2";
    case Decay::times_rate:
      return "times rate";
    case Decay::times_schedule:
      return "times schedule";
  }
  return "?";
}

struct Check {
  void operator()(const Sgd& sgd) const {
    require(is_size(sgd.lr), sgd, "the learning rate must be finite and not negative");
    require(is_size(sgd.weight_decay), sgd, "the weight decay must be finite and not negative");
    require(is_size(sgd.momentum), sgd, "the momentum must be finite and not negative");
    require(std::isfinite(sgd.dampening), sgd, "the dampening must be finite");
    require(!sgd.nesterov || (sgd.momentum > 0 && sgd.dampening == 0), sgd,
            "Nesterov's form needs momentum and no dampening");
  }
  void operator()(const AdamW& adam) const {
    require(adam.decay != Decay::l2, adam, "with Decay::l2 it is Adam");
    check(adam);
  }
  void operator()(const Adam& adam) const { check(adam); }
  void operator()(const Adagrad& adagrad) const {
    require(is_size(adagrad.lr), adagrad, "the learning rate must be finite and not negative");
    require(is_size(adagrad.lr_decay), adagrad, "lr_decay must be finite and not negative");
    require(is_size(adagrad.weight_decay), adagrad,
            "the weight decay must be finite and not negative");
    require(is_size(adagrad.initial_sum), adagrad, "the sum must be finite and not negative");
    require(is_size(adagrad.eps), adagrad, "eps must be finite and not negative");
  }
  void operator()(const TorchOptim& torch) const {
    require(torch.rule != nullptr, torch, "made by hand, not by torch_optimizer()");
  }
  template <class AnyAdam>
  static void check(const AnyAdam& adam) {
    require(is_size(adam.lr), adam, "the learning rate must be finite and not negative");
    require(is_size(adam.weight_decay), adam, "the weight decay must be finite and not negative");
    require(is_size(adam.eps), adam, "eps must be finite and not negative");
    require(is_factor(adam.beta1) && is_factor(adam.beta2), adam, "betas must be in [0, 1)");
  }
};

struct Text {
  std::string operator()(const Sgd& sgd) const {
    return fmt::format("SGD lr {} momentum {} dampening {} weight_decay {} {}{}", sgd.lr,
                       sgd.momentum, sgd.dampening, sgd.weight_decay, text_of(sgd.decay),
                       sgd.nesterov ? " nesterov" : "");
  }
  std::string operator()(const Adam& adam) const { return text("Adam", adam); }
  std::string operator()(const Adagrad& adagrad) const {
    return fmt::format("Adagrad lr {} lr_decay {} weight_decay {} initial_sum {} eps {}",
                       adagrad.lr, adagrad.lr_decay, adagrad.weight_decay, adagrad.initial_sum,
                       adagrad.eps);
  }
  std::string operator()(const TorchOptim& torch) const { return "torch " + torch.text; }
  std::string operator()(const AdamW& adam) const {
    return fmt::format("{} {}", text("AdamW", adam), text_of(adam.decay));
  }
  template <class AnyAdam>
  static std::string text(std::string_view name, const AnyAdam& adam) {
    return fmt::format("{} lr {} beta1 {} beta2 {} eps {} weight_decay {}", name, adam.lr,
                       adam.beta1, adam.beta2, adam.eps, adam.weight_decay);
  }
};

}  // namespace

Optimizer::Optimizer(const Rule& rule) : rule_(rule) { std::visit(Check{}, rule); }

Optimizer& Optimizer::group(Where where, const Rule& rule) {
  if (!where) throw InvalidArgument("a group of parameters needs a predicate");
  std::visit(Check{}, rule);
  groups_.emplace_back(std::move(where), rule);
  return *this;
}

const Optimizer::Rule& Optimizer::rule_of(const std::string& parameter) const {
  return rule_of(std::vector<std::string>{parameter});
}

const Optimizer::Rule& Optimizer::rule_of(const std::vector<std::string>& names) const {
  const auto k = group_of(names);
  return k < groups_.size() ? groups_[k].second : rule_;
}

/// The number of groups if none holds.
std::size_t Optimizer::group_of(const std::vector<std::string>& names) const {
  const auto holds = [&](const auto& group) {
    return std::any_of(names.begin(), names.end(), group.first);
  };
  return static_cast<std::size_t>(std::find_if(groups_.begin(), groups_.end(), holds) -
                                  groups_.begin());
}

std::vector<std::size_t> Optimizer::unused_groups(
    const std::vector<std::vector<std::string>>& parameters) const {
  std::vector<bool> used(groups_.size() + 1);
  for (const auto& names : parameters) used[group_of(names)] = true;
  std::vector<std::size_t> unused;
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    if (!used[k]) unused.push_back(k);
  }
  return unused;
}

std::string text_of(const Optimizer::Rule& rule) { return std::visit(Text{}, rule); }

}  // namespace tutti
