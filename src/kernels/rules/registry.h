#pragma once

// All rules with a kernel: one line for each. Its source defines it (rule.h), its arithmetic is in
// its <rule>_formula-inl.h, and its numbers are among those of rule_kernels.h.
//
// An alternative of Optimizer::Rule that has no line here does not compile where rules are visited.

#include <optional>
#include <string>

#include "kernels/rules/rule.h"

namespace tutti {

UpdateRule define(const Sgd& rule);
UpdateRule define(const Adam& rule);
UpdateRule define(const AdamW& rule);
UpdateRule define(const Adagrad& rule);
UpdateRule define(const RmsProp& rule);
UpdateRule define(const Lion& rule);

/// The rule's definition; empty for one of torch's optimizers, which has no kernel.
std::optional<UpdateRule> update_rule_of(const Optimizer::Rule& rule);
/// "Sgd, Adam, … or Adagrad": the names of all rules with a kernel.
std::string names_of_rules();

}  // namespace tutti
