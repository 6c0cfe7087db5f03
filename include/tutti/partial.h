#pragma once

// A value that is not yet reduced over a group, as a type of its own: what workers have is added up
// where it is, without traffic, and only a reduction makes a tensor of it, once.
//
//   auto loss = tutti::partial_sum(group, cross_entropy) + tutti::partial_sum(group, penalty);
//   torch::Tensor all = std::move(loss).reduce();   // one all-reduce for both
//
// A Partial meets no tensor: added to one, it would count the tensor size() times in the end. The
// compiler says so, and names the way out. Gradients are those of tutti/ops.h.
//
// Threads: as Group. Failure: that of Group. A Partial that is destroyed without a reduction is a
// mistake on this worker that leaves others waiting: in a debug build (without NDEBUG) the program
// ends with a message, otherwise a warning is logged.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <utility>

#include "tutti/group.h"

namespace tutti {

/// How the workers' parts of a value become the whole.
enum class Whole {
  sum,
  mean,  ///< Σ w·value / Σ w over all parts
  max,   ///< element by element, as all that follow but concat
  min,
  product,
  all,  ///< of booleans
  any,
  concat  ///< rows along dim 0, in the order of ranks
};

/// What Partial does, whatever becomes of it.
class PartialValue {
 public:
  PartialValue(PartialValue&& other) noexcept;
  PartialValue& operator=(PartialValue&& other) noexcept;
  const Group& group() const { return group_; }

 protected:
  ~PartialValue() = default;
  PartialValue(const Group& group, Whole whole, torch::Tensor value);
  /// The part of a mean.
  PartialValue(const Group& group, const torch::Tensor& value, double weight);
  /// InvalidArgument for parts of two groups, and for one that has been reduced.
  void merge(PartialValue&& other);
  void scale(double factor);
  void divide(double divisor);
  torch::Tensor reduce(const CollectiveOptions& options);
  torch::Tensor reduce_scatter(std::span<const std::int64_t> rows,
                               const CollectiveOptions& options);
  /// What is destroyed was reduced, or that is said; `ends`: and the program ends.
  void require_reduced(bool ends) const noexcept;

 private:
  void require_value(const char* what) const;
  torch::Tensor reduce_mean(const torch::Tensor& value, const CollectiveOptions& options) const;
  Group group_;
  Whole whole_;
  torch::Tensor value_;                       ///< undefined once it is reduced
  double weight_ = 0;                         ///< of a mean, whose value was multiplied by it
  torch::ScalarType type_ = torch::kFloat32;  ///< of a mean's result
};

/// Results of what does not compile: messages of compilers have their names.
struct ReduceThePartialFirst;
struct ReduceWithStdMoveOfThePartial;
struct CombineThePartials;

template <Whole whole>
class [[nodiscard]] Partial final : public PartialValue {
  static constexpr bool kScales = whole == Whole::sum || whole == Whole::mean;

 public:
  /// This worker's part. The members' parts have the same shape (rows of concat may differ).
  Partial(const Group& group, torch::Tensor value) requires(whole != Whole::mean)
      : PartialValue(group, whole, std::move(value)) {}
  /// `value`, which counts as `weight`: the samples that it is the mean of. With 0 it counts
  /// nothing, whatever it is: NaN, as the mean of no samples is, gives 0 here and to its gradient.
  /// The mean of parts that all have 0 is NaN.
  ///
  /// The mean has the type of `value`, which must be floating: a mean of integers or booleans would
  /// be rounded, and is InvalidArgument. Σ w·value and Σ w are computed, and sent, in float64 for
  /// float64, and in float32 for all other types. InvalidArgument for a weight that is negative,
  /// not finite, above 1e150, or which float32 cannot hold where it has to: above 3.4e38, or above
  /// 0 and below 1.2e-38.
  Partial(const Group& group, const torch::Tensor& value,
          double weight) requires(whole == Whole::mean)
      : PartialValue(group, value, weight) {}

  Partial(Partial&&) noexcept = default;
  Partial& operator=(Partial&&) noexcept = default;
#ifdef NDEBUG
  ~Partial() { require_reduced(false); }
#else
  ~Partial() { require_reduced(true); }
#endif

  /// One part for two, of the same group. No traffic.
  friend Partial combine(Partial one, Partial other) {
    one.merge(std::move(other));
    return one;
  }
  /// The same of sums.
  friend Partial operator+(Partial one, Partial other) requires(whole == Whole::sum) {
    return combine(std::move(one), std::move(other));
  }
  /// A sum or mean of parts is as many times as large as each of them.
  friend Partial operator*(Partial one, double factor) requires(kScales) {
    one.scale(factor);
    return one;
  }
  friend Partial operator*(double factor, Partial one) requires(kScales) {
    return std::move(one) * factor;
  }
  friend Partial operator/(Partial one, double divisor) requires(kScales) {
    one.divide(divisor);
    return one;
  }
  Partial& operator+=(Partial other) requires(whole == Whole::sum) {
    this->merge(std::move(other));
    return *this;
  }
  friend CombineThePartials operator+(const Partial&,
                                      const Partial&) requires(whole != Whole::sum) = delete;
  friend ReduceThePartialFirst operator+(const Partial&, const torch::Tensor&) = delete;
  friend ReduceThePartialFirst operator+(const torch::Tensor&, const Partial&) = delete;
  friend ReduceThePartialFirst operator*(const Partial&, const torch::Tensor&) = delete;
  friend ReduceThePartialFirst operator*(const torch::Tensor&, const Partial&) = delete;

  /// The whole, on all members. Collective.
  torch::Tensor reduce(const CollectiveOptions& options = {}) && {
    return PartialValue::reduce(options);
  }
  ReduceWithStdMoveOfThePartial reduce(const CollectiveOptions& options = {}) const& = delete;
  /// This member's rows of it, as ops::reduce_scatter. Collective.
  torch::Tensor reduce_scatter(std::span<const std::int64_t> rows = {},
                               const CollectiveOptions& options = {}) &&
      requires(whole == Whole::sum) {
    return PartialValue::reduce_scatter(rows, options);
  }
  ReduceWithStdMoveOfThePartial reduce_scatter(std::span<const std::int64_t> rows = {},
                                               const CollectiveOptions& options = {}) const& =
      delete;
};

inline Partial<Whole::sum> partial_sum(const Group& group, torch::Tensor value) {
  return {group, std::move(value)};
}
inline Partial<Whole::mean> partial_mean(const Group& group, const torch::Tensor& value,
                                         double weight) {
  return {group, value, weight};
}

}  // namespace tutti
