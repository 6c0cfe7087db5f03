#include "tutti/partial.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "tutti/error.h"
#include "tutti/ops.h"
#include "tutti/tensors.h"

namespace tutti {

PartialValue::PartialValue(const Group& group, Whole whole, torch::Tensor value,
                           std::optional<torch::Tensor> weight)
    : group_(group), whole_(whole), value_(std::move(value)), weight_(std::move(weight)) {
  require_value("made");
  const bool is_of_booleans = whole == Whole::all || whole == Whole::any;
  if (is_of_booleans && value_.scalar_type() != torch::kBool) {
    throw InvalidArgument("a partial value of all or any: the tensor must be of booleans");
  }
}

PartialValue::PartialValue(PartialValue&& other) noexcept
    : group_(other.group_),
      whole_(other.whole_),
      value_(std::exchange(other.value_, {})),
      weight_(std::exchange(other.weight_, {})) {}

PartialValue& PartialValue::operator=(PartialValue&& other) noexcept {
  std::swap(group_, other.group_);
  std::swap(whole_, other.whole_);
  std::swap(value_, other.value_);
  std::swap(weight_, other.weight_);
  return *this;
}

void PartialValue::require_reduced(bool ends) const noexcept {
  if (!value_.defined() || std::uncaught_exceptions() > 0) return;
  const auto text = fmt::format(
      "a partial value of group \"{}\" is destroyed without a reduction: members that reduce "
      "theirs wait for this one",
      group_.name());
  if (!ends) return log().warn("{}", text);
  std::fprintf(stderr, "tutti: %s\n", text.c_str());
  std::abort();
}

void PartialValue::require_value(const char* what) const {
  if (value_.defined()) return;
  throw InvalidArgument(
      fmt::format("a partial value that is {} has no tensor: it was reduced, combined or moved "
                  "before",
                  what));
}

void PartialValue::merge(PartialValue&& other) {
  const auto theirs = std::exchange(other.value_, {});
  const auto their_weight = std::exchange(other.weight_, {});
  if (!value_.defined() || !theirs.defined()) {
    value_.reset();
    require_value("combined");
  }
  if (group_.state() != other.group_.state()) {
    value_.reset();
    throw InvalidArgument(fmt::format("partial values of two groups, \"{}\" and \"{}\"",
                                      group_.name(), other.group_.name()));
  }
  switch (whole_) {
    case Whole::sum:
    case Whole::mean:
      value_ = value_ + theirs;
      if (weight_) weight_ = *weight_ + *their_weight;
      return;
    case Whole::max:
      value_ = torch::maximum(value_, theirs);
      return;
    case Whole::min:
      value_ = torch::minimum(value_, theirs);
      return;
    case Whole::product:
      value_ = value_ * theirs;
      return;
    case Whole::all:
      value_ = value_.logical_and(theirs);
      return;
    case Whole::any:
      value_ = value_.logical_or(theirs);
      return;
    case Whole::concat:
      value_ = torch::cat({value_, theirs});
      return;
  }
}

torch::Tensor PartialValue::weighted(const torch::Tensor& value, double weight) {
  if (!(weight >= 0) || std::isinf(weight)) {
    throw InvalidArgument(fmt::format("a weight must be finite and not negative, not {}", weight));
  }
  if (weight != 0) return value * weight;
  // Stays in the graph: others may wait in the backward of what it comes from.
  return value.masked_fill(torch::ones({}, value.options().dtype(torch::kBool)), 0);
}

void PartialValue::divide(double divisor) {
  require_value("divided");
  value_ = value_ / divisor;
}

void PartialValue::scale(double factor) {
  require_value("scaled");
  value_ = value_ * factor;
}

torch::Tensor PartialValue::reduce(const CollectiveOptions& options) {
  require_value("reduced");
  auto value = std::exchange(value_, {});
  switch (whole_) {
    case Whole::sum:
      return ops::all_reduce(group_, value, Reduction::sum, options);
    case Whole::mean: {
      // One message for both: the weight is a last element.
      const auto both = torch::cat({value.flatten(), std::exchange(weight_, {})->reshape({1})});
      const auto sums = ops::all_reduce(group_, both, Reduction::sum, options);
      return (sums.slice(0, 0, -1) / sums.slice(0, -1).detach()).view(value.sizes());
    }
    case Whole::max:
      return ops::all_reduce(group_, value, Reduction::max, options);
    case Whole::min:
      return ops::all_reduce(group_, value, Reduction::min, options);
    case Whole::product:
      return ops::all_reduce(group_, value, Reduction::product, options);
    case Whole::concat:
      return ops::all_gather(group_, value, options);
    case Whole::all:
    case Whole::any:
      break;
  }
  auto result = value.contiguous().clone();
  tutti::all_reduce(group_, result,
                    whole_ == Whole::all ? Reduction::logical_and : Reduction::logical_or, options);
  return result;
}

torch::Tensor PartialValue::reduce_scatter(std::span<const std::int64_t> rows,
                                           const CollectiveOptions& options) {
  require_value("reduced");
  const auto value = std::exchange(value_, {});
  return ops::reduce_scatter(group_, value, Reduction::sum, rows, options);
}

}  // namespace tutti
