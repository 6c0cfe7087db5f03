#include "tutti/partial.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "torch/model/layout.h"
#include "torch/model/loss_weight.h"
#include "tutti/error.h"
#include "tutti/ops.h"
#include "tutti/tensors.h"

namespace tutti {

namespace {

/// In which a mean of this type is computed.
torch::ScalarType wide_type(torch::ScalarType type) {
  if (type == torch::kComplexFloat || type == torch::kComplexDouble) return type;
  return type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

void require_held_weight(double weight, torch::ScalarType type) {
  require_weight(weight);
  using Float = std::numeric_limits<float>;
  if (c10::toRealValueType(wide_type(type)) == torch::kFloat64 || weight == 0) return;
  if (weight >= Float::min() && weight <= Float::max()) return;
  throw InvalidArgument(
      fmt::format("a weight of {} cannot be held in float32, in which a mean of {} is computed: "
                  "divide all members' weights, or give a tensor of Double",
                  weight, c10::toString(type)));
}

/// value · weight; zeros for 0, whatever the value.
torch::Tensor times_weight(const torch::Tensor& value, double weight) {
  if (weight != 0) return value * weight;
  // Stays in the graph: others may wait in the backward of what it comes from.
  return value.masked_fill(torch::ones({}, value.options().dtype(torch::kBool)), 0);
}

}  // namespace

PartialValue::PartialValue(const Group& group, const torch::Tensor& value, double weight)
    : PartialValue(group, Whole::mean, value) {
  type_ = value_.scalar_type();
  if (!value_.is_floating_point() && !value_.is_complex()) {
    throw InvalidArgument(
        fmt::format("a partial mean of {}: the tensor must be of a floating type, as for "
                    "torch::mean; convert it first, as by .to(torch::kFloat32)",
                    c10::toString(type_)));
  }
  require_held_weight(weight, type_);
  weight_ = weight;
  value_ = times_weight(value_.to(wide_type(type_)), weight);
}

PartialValue::PartialValue(const Group& group, Whole whole, torch::Tensor value)
    : group_(group), whole_(whole), value_(std::move(value)) {
  require_value("made");
  require_strided(value_);
  const bool is_of_booleans = whole == Whole::all || whole == Whole::any;
  if (is_of_booleans && value_.scalar_type() != torch::kBool) {
    throw InvalidArgument("a partial value of all or any: the tensor must be of booleans");
  }
}

PartialValue::PartialValue(PartialValue&& other) noexcept
    : group_(other.group_),
      whole_(other.whole_),
      value_(std::exchange(other.value_, {})),
      weight_(other.weight_),
      type_(other.type_) {}

PartialValue& PartialValue::operator=(PartialValue&& other) noexcept {
  std::swap(group_, other.group_);
  std::swap(whole_, other.whole_);
  std::swap(value_, other.value_);
  std::swap(weight_, other.weight_);
  std::swap(type_, other.type_);
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
      value_ = value_ + theirs;
      return;
    case Whole::mean:
      type_ = c10::promoteTypes(type_, other.type_);
      value_ = value_.to(wide_type(type_)) + theirs.to(wide_type(type_));
      weight_ += other.weight_;
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
    case Whole::mean:
      return reduce_mean(value, options);
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

torch::Tensor PartialValue::reduce_mean(const torch::Tensor& value,
                                        const CollectiveOptions& options) const {
  require_held_weight(weight_, type_);
  // One message for both: the weight is a last element.
  const auto weight = torch::full({1}, weight_, value.options().requires_grad(false));
  const auto sums =
      ops::all_reduce(group_, torch::cat({value.flatten(), weight}), Reduction::sum, options);
  return (sums.slice(0, 0, -1) / sums.slice(0, -1).detach()).view(value.sizes()).to(type_);
}

torch::Tensor PartialValue::reduce_scatter(std::span<const std::int64_t> rows,
                                           const CollectiveOptions& options) {
  require_value("reduced");
  const auto value = std::exchange(value_, {});
  return ops::reduce_scatter(group_, value, Reduction::sum, rows, options);
}

}  // namespace tutti
