#include "sync/update/update_rules.h"

namespace tutti {

UpdateRule UpdateRules::next(std::size_t parameter, double rate_factor) const {
  auto rule = *rules_[parameter];
  const auto follow_schedule = [&](auto& any) {
    any.learning_rate *= rate_factor;
    if constexpr (requires { any.shrink; }) any.shrink *= rate_factor;
  };
  std::visit(follow_schedule, rule);
  const auto updates = updates_[parameter];
  // A row's momentum begins with 0, whenever it is touched for the first time.
  const bool lists = plan_.parameters()[parameter].row_sparse();
  if (auto* sgd = std::get_if<SgdRule>(&rule)) sgd->starts = updates == 0 && !lists;
  if (auto* adam = std::get_if<AdamRule>(&rule)) adam->step = updates + 1;
  if (auto* adagrad = std::get_if<AdagradRule>(&rule)) adagrad->step = updates + 1;
  return rule;
}

}  // namespace tutti
