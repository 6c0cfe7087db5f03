#pragma once

// The optimizer's rule of each parameter of one copy of a model, and how often each was updated.
//
// Threads: one. Failure: none.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/rules/rule.h"
#include "sync/plan/plan.h"

namespace tutti {

class UpdateRules {
 public:
  /// `rules[p]` of parameter p; none where something else updates it.
  UpdateRules(const Plan& plan, std::vector<std::optional<UpdateRule>> rules)
      : plan_(plan), rules_(std::move(rules)), updates_(rules_.size()) {}

  bool has(std::size_t parameter) const { return rules_[parameter].has_value(); }
  /// The parameter's next update, with learning rates multiplied by `rate_factor`.
  PreparedUpdate next(std::size_t parameter, double rate_factor) const {
    return rules_[parameter]->at({.step = updates_[parameter] + 1,
                                  .rate_factor = rate_factor,
                                  .row_sparse = plan_.parameters()[parameter].row_sparse()});
  }

  /// How often each parameter was updated.
  const std::vector<std::int64_t>& updates() const { return updates_; }
  std::vector<std::int64_t>& updates() { return updates_; }

 private:
  const Plan& plan_;
  std::vector<std::optional<UpdateRule>> rules_;
  std::vector<std::int64_t> updates_;
};

}  // namespace tutti
