#pragma once

// The definition of an optimizer rule: all but its arithmetic (<rule>_formula-inl.h) and its public
// struct, which contains its numbers (tutti/optimizer.h), in the one value that define() makes of
// such a struct.
//
// Threads: values. Failure: none; numbers that make no sense are named in UpdateRule::problem.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/rules/rule_kernels.h"
#include "kernels/update.h"
#include "tutti/optimizer.h"

namespace tutti {

/// A tensor that a rule keeps for every parameter, of the parameter's size.
struct RuleState {
  std::string name;    ///< as torch's optimizers name it in what they save
  double initial = 0;  ///< of all elements
};

/// Arguments that change from one update of a parameter to the next.
struct UpdateMoment {
  std::int64_t step = 1;    ///< t ≥ 1: updates of this parameter, this one included
  double rate_factor = 1;   ///< s: the schedule's factor of the learning rate
  bool row_sparse = false;  ///< each row has its first update at a step of its own
};

struct UpdateRule {
  std::string name;               ///< of its public struct
  std::string text;               ///< with all numbers: in logs, plans and checkpoints
  std::string problem;            ///< the first number that makes no sense; "": all do
  std::vector<RuleState> states;  ///< at most kMaxStates
  /// Computes the coefficients of an update.
  std::function<RuleNumbers(const UpdateMoment&)> numbers;

  PreparedUpdate at(const UpdateMoment& moment) const;
};

// Shared parts of several rules.

/// A number has to satisfy it; the text is the error where it does not.
struct Condition {
  bool holds = true;
  std::string text;
};

/// The text of the first condition that does not hold; "" where all do.
std::string first_broken(std::initializer_list<Condition> conditions);
/// "eps must be finite and not negative".
Condition finite_and_not_negative(std::string_view name, double value);
/// Whether it is in [0, 1).
bool is_in_unit_interval(double value);
std::string_view text_of(Decay decay);
/// κ of p ← p·(1 − κ), the decoupled weight decay; 0 for Decay::l2.
double shrink_of(Decay decay, double lr, double weight_decay, double rate_factor);

}  // namespace tutti
