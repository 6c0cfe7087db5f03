#include "tutti/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "kernels/rules/registry.h"
#include "tutti/error.h"

namespace tutti {
namespace {

struct RuleText {
  std::string text;
  std::string problem;
};

RuleText text_of_rule(const TorchOptim& torch) {
  return {"torch " + torch.text,
          torch.rule == nullptr ? "made by hand, not by torch_optimizer()" : ""};
}

template <class Rule>
RuleText text_of_rule(const Rule& rule) {
  auto all = define(rule);
  return {std::move(all.text), std::move(all.problem)};
}

RuleText text_of_rule(const Optimizer::Rule& rule) = delete;  // visit it

void require_sound(const Optimizer::Rule& rule) {
  const auto rule_text = std::visit([](const auto& any) { return text_of_rule(any); }, rule);
  if (rule_text.problem.empty()) return;
  throw InvalidArgument(fmt::format("{}: {}", rule_text.text, rule_text.problem));
}

template <class... Rules>
std::vector<std::string> names_of(const std::variant<Rules...>*) {
  std::vector<std::string> names;
  const auto add = [&](const auto& rule) {
    if constexpr (!std::is_same_v<decltype(rule), const TorchOptim&>) {
      names.push_back(define(rule).name);
    }
  };
  (add(Rules()), ...);
  return names;
}

}  // namespace

Optimizer::Optimizer(const Rule& rule) : rule_(rule) { require_sound(rule); }

Optimizer& Optimizer::group(Where where, const Rule& rule) {
  if (!where) throw InvalidArgument("a group of parameters needs a predicate");
  require_sound(rule);
  groups_.emplace_back(std::move(where), rule);
  return *this;
}

std::vector<Optimizer::Rule> Optimizer::rules() const {
  std::vector<Rule> all;
  for (const auto& group : groups_) all.push_back(group.second);
  all.push_back(rule_);
  return all;
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

std::string text_of(const Optimizer::Rule& rule) {
  return std::visit([](const auto& any) { return text_of_rule(any).text; }, rule);
}

std::optional<UpdateRule> update_rule_of(const Optimizer::Rule& rule) {
  return std::visit(
      [](const auto& any) -> std::optional<UpdateRule> {
        if constexpr (std::is_same_v<decltype(any), const TorchOptim&>) {
          return {};
        } else {
          return define(any);
        }
      },
      rule);
}

std::string names_of_rules() {
  const auto names = names_of(static_cast<const Optimizer::Rule*>(nullptr));
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

}  // namespace tutti
