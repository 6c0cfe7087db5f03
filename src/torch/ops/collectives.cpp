#include <string>
#include <utility>

#include <fmt/format.h>

#include "comm/channels.h"
#include "comm/group_state.h"
#include "torch/model/layout.h"
#include "torch/model/moved_tensor.h"
#include "torch/model/resolved.h"
#include "torch/ops/collective_node.h"
#include "torch/ops/rows.h"
#include "tutti/error.h"
#include "tutti/ops.h"
#include "tutti/tensors.h"

namespace tutti::ops {
namespace {

/// What a gradient's collective is called: the forward call has the same number on all members.
class GradientLabel {
 public:
  GradientLabel(const Group& group, const CollectiveOptions& options)
      : text_(fmt::format("gradient of call {}{}{}{}", group.state()->calls(),
                          options.label.empty() ? "" : ", \"", options.label,
                          options.label.empty() ? "" : "\"")),
        deadline_(options.deadline) {}
  CollectiveOptions options() const { return {.label = text_, .deadline = deadline_}; }

 private:
  std::string text_;
  std::optional<std::chrono::milliseconds> deadline_;
};

/// Detached: what is moved has no part in autograd. What cannot be moved is refused before anything
/// is sent.
torch::Tensor given(const torch::Tensor& x) {
  require_strided(x);
  auto in = resolved(x.detach()).contiguous();
  static_cast<void>(dtype_of(in));
  return in;
}

/// What a collective of members who have losses of their own is to autograd.
torch::Tensor of_members(const Group& group, const char* operation, torch::Tensor result,
                         const torch::Tensor& input, GradientOfCollective gradient) {
  return with_gradient(std::move(result), input,
                       of_weighted_losses(group, operation, std::move(gradient)));
}

void require_linear(Reduction reduction, const char* what) {
  if (reduction == Reduction::sum || reduction == Reduction::mean) return;
  throw Unsupported(fmt::format("{}: sum and mean; all_reduce() has the others", what));
}

/// True where the value is this member's, and no lower rank's.
torch::Tensor won(const Group& group, const torch::Tensor& x, const torch::Tensor& best,
                  const CollectiveOptions& options) {
  const auto is_best = (x == best).logical_or(x.isnan().logical_and(best.isnan()));
  auto winner = torch::where(is_best, torch::tensor(group.rank(), torch::kInt32),
                             torch::tensor(group.size(), torch::kInt32));
  tutti::all_reduce(group, winner, Reduction::min, options);
  return winner == group.rank();
}

/// The product of the other members' values.
torch::Tensor product_of_others(const Group& group, const torch::Tensor& x,
                                const CollectiveOptions& options) {
  const auto all = tutti::all_gather(group, x.unsqueeze(0), options);
  auto product = torch::ones_like(x);
  for (int member = 0; member < group.size(); ++member) {
    if (member != group.rank()) product *= all[member];
  }
  return product;
}

}  // namespace

torch::Tensor all_reduce(const Group& group, const torch::Tensor& x, Reduction reduction,
                         const CollectiveOptions& options) {
  if (reduction == Reduction::logical_and || reduction == Reduction::logical_or) {
    throw Unsupported(fmt::format("ops::all_reduce: {} has no gradient; tutti::all_reduce() has it",
                                  name_of(reduction)));
  }
  const auto in = given(x);
  auto out = in.clone();
  tutti::all_reduce(group, out, reduction, options);
  if (!records_gradients(out.scalar_type())) return out;
  const GradientLabel label(group, options);
  const auto sum = [group, label](const torch::Tensor& gradient, Reduction how) {
    auto all = gradient.clone();
    tutti::all_reduce(group, all, how, label.options());
    return all;
  };
  switch (reduction) {
    case Reduction::max:
    case Reduction::min: {
      const auto is_mine = won(group, in, out, options);
      return of_members(group, "all_reduce", out, x, [sum, is_mine](const torch::Tensor& gradient) {
        const auto all = sum(gradient, Reduction::sum);
        return torch::where(is_mine, all, torch::zeros_like(all));
      });
    }
    case Reduction::product: {
      const auto others = product_of_others(group, in, options);
      return of_members(group, "all_reduce", out, x, [sum, others](const torch::Tensor& gradient) {
        return sum(gradient, Reduction::sum) * others;
      });
    }
    default:
      return of_members(
          group, "all_reduce", out, x,
          [sum, reduction](const torch::Tensor& gradient) { return sum(gradient, reduction); });
  }
}

torch::Tensor reduce(const Group& group, const torch::Tensor& x, Reduction reduction, int root,
                     const CollectiveOptions& options) {
  require_linear(reduction, "ops::reduce");
  const auto in = given(x);
  auto out = group.rank() == root ? torch::empty_like(in) : stand_in(in);
  tutti::reduce(group, in, out, reduction, root, options);
  const double share = reduction == Reduction::mean ? group.size() : 1;
  return of_members(group, "reduce", out, x,
                    [=, label = GradientLabel(group, options), like = stand_in(in),
                     sizes = in.sizes().vec()](const torch::Tensor& gradient) {
                      auto all = group.rank() == root ? gradient.clone()
                                                      : torch::empty(sizes, like.options());
                      tutti::broadcast(group, all, root, label.options());
                      return all.div_(share);
                    });
}

torch::Tensor reduce_scatter(const Group& group, const torch::Tensor& x, Reduction reduction,
                             std::span<const std::int64_t> rows, const CollectiveOptions& options) {
  require_linear(reduction, "ops::reduce_scatter");
  const auto in = given(x);
  require_rows(in, "reduce_scatter");
  Rows shares;
  if (rows.empty()) {
    if (in.size(0) % group.size() != 0) {
      throw InvalidArgument(
          fmt::format("reduce_scatter: {} rows have no {} equal shares", in.size(0), group.size()));
    }
    shares.assign(static_cast<std::size_t>(group.size()), in.size(0) / group.size());
  } else {
    shares = checked_rows(group, rows, "reduce_scatter");
  }
  auto out = scatter_sums(group, in, shares, reduction, options);
  const double share = reduction == Reduction::mean ? group.size() : 1;
  return of_members(group, "reduce_scatter", out, x,
                    [=, label = GradientLabel(group, options)](const torch::Tensor& gradient) {
                      return gather_rows(group, gradient, shares, label.options()).div_(share);
                    });
}

torch::Tensor all_gather(const Group& group, const torch::Tensor& x,
                         const CollectiveOptions& options) {
  const auto in = given(x);
  const auto rows = rows_of_all(group, in, "all_gather", options);
  auto out = gather_rows(group, in, rows, options);
  return of_members(group, "all_gather", out, x,
                    [=, label = GradientLabel(group, options)](const torch::Tensor& gradient) {
                      return scatter_sums(group, gradient, rows, Reduction::sum, label.options());
                    });
}

torch::Tensor gather(const Group& group, const torch::Tensor& x, int root,
                     const CollectiveOptions& options) {
  const auto in = given(x);
  const auto rows = rows_of_all(group, in, "gather", options);
  auto out = gather_to(group, in, rows, root, options);
  return of_members(group, "gather", out, x,
                    [=, label = GradientLabel(group, options),
                     like = with_rows(in, 0)](const torch::Tensor& gradient) {
                      return scatter_from(group, gradient, like, rows, root, label.options());
                    });
}

torch::Tensor broadcast(const Group& group, const torch::Tensor& x, int root,
                        const CollectiveOptions& options) {
  auto out = given(x).clone();
  tutti::broadcast(group, out, root, options);
  return of_members(group, "broadcast", out, x,
                    [=, label = GradientLabel(group, options)](const torch::Tensor& gradient) {
                      auto sum =
                          group.rank() == root ? torch::empty_like(gradient) : torch::Tensor();
                      tutti::reduce(group, gradient, sum, Reduction::sum, root, label.options());
                      return sum;
                    });
}

torch::Tensor scatter(const Group& group, const torch::Tensor& x,
                      std::span<const std::int64_t> rows, int root,
                      const CollectiveOptions& options) {
  const auto in = given(x);
  const auto shares = checked_rows(group, rows, "scatter");
  auto out = scatter_from(group, in, in, shares, root, options);
  return of_members(group, "scatter", out, x,
                    [=, label = GradientLabel(group, options)](const torch::Tensor& gradient) {
                      auto all = gather_to(group, gradient, shares, root, label.options());
                      return group.rank() == root ? all : torch::Tensor();
                    });
}

torch::Tensor all_to_all(const Group& group, const torch::Tensor& x,
                         std::span<const std::int64_t> given_rows,
                         std::span<const std::int64_t> taken_rows,
                         const CollectiveOptions& options) {
  const auto in = given(x);
  const auto to = checked_rows(group, given_rows, "all_to_all");
  const auto from = checked_rows(group, taken_rows, "all_to_all");
  auto out = exchange(group, in, to, from, options);
  return of_members(group, "all_to_all", out, x,
                    [=, label = GradientLabel(group, options)](const torch::Tensor& gradient) {
                      return exchange(group, gradient, from, to, label.options());
                    });
}

std::vector<std::int64_t> exchange_rows(const Group& group, std::span<const std::int64_t> given,
                                        const CollectiveOptions& options) {
  auto named = options;
  if (named.label.empty()) named.label = "rows";
  const auto mine = checked_rows(group, given, "exchange_rows");
  Rows taken(mine.size());
  group.all_to_all({mine.data(), group.size(), DType::int64},
                   {taken.data(), group.size(), DType::int64}, named);
  return taken;
}

torch::Tensor copy_to_group(const Group& group, const torch::Tensor& x,
                            const CollectiveOptions& options) {
  require_strided(x);
  return view_with_gradient(
      x,
      of_weighted_losses(group, "copy_to_group",
                         [=, label = GradientLabel(group, options)](const torch::Tensor& gradient) {
                           auto sum = gradient.clone();
                           tutti::all_reduce(group, sum, Reduction::sum, label.options());
                           return sum;
                         }));
}

torch::Tensor reduce_from_group(const Group& group, const torch::Tensor& x,
                                const CollectiveOptions& options) {
  auto out = given(x).clone();
  tutti::all_reduce(group, out, Reduction::sum, options);
  return with_gradient(out, x, [](const torch::Tensor& gradient) { return gradient; });
}

torch::Tensor send(const Group& group, const torch::Tensor& x, int to,
                   const CollectiveOptions& options) {
  const auto in = given(x);
  MovedTensor given_to(group, in, options);
  group.send(given_to.values(), to, Layout(in).with(options));
  const Group way(group.state()->channels().way(group.rank(), to));
  return of_members(group, "send", stand_in(in), x,
                    [=, label = GradientLabel(way, options), like = stand_in(in),
                     sizes = in.sizes().vec()](const torch::Tensor&) {
                      const auto gradient = torch::empty(sizes, like.options());
                      MovedTensor moved(group, gradient, label.options());
                      group.receive(moved.room(), to, label.options());
                      moved.give();
                      return gradient;
                    });
}

torch::Tensor receive(const Group& group, const torch::Tensor& like, int from,
                      const CollectiveOptions& options) {
  require_strided(like);
  auto out = torch::empty(like.sizes(), like.options().requires_grad(false));
  MovedTensor moved(group, out, options);
  group.receive(moved.room(), from, Layout(out).with(options));
  moved.give();
  const Group way(group.state()->channels().way(from, group.rank()));
  return of_members(group, "receive", out, {},
                    [=, label = GradientLabel(way, options)](const torch::Tensor& gradient) {
                      MovedTensor back(group, gradient, label.options());
                      group.send(back.values(), from, label.options());
                      return torch::Tensor();
                    });
}

torch::Tensor attach(const torch::Tensor& loss, const std::vector<torch::Tensor>& results) {
  auto all = loss;
  for (const auto& result : results) {
    all = all + torch::real(result).flatten().slice(0, 0, 0).sum();
  }
  return all;
}

void backward(const Group& group, const torch::Tensor& loss) {
  try {
    loss.backward();
  } catch (const std::exception& e) {
    group.fail(e.what());
    throw;
  } catch (...) {
    group.fail("an exception of a type of its own");
    throw;
  }
}

}  // namespace tutti::ops
