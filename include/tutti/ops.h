#pragma once

// Collectives as operations of a model: on tensors, with gradients, usable in forward, in backward
// and outside of both. tensors.h has those that take no part in autograd.
//
// What is differentiated is the sum, over the members, of what each calls backward() on. A loss
// that is computed from a reduced value, the same on all, would count size() times: divide it, or
// take reduce_from_group(), whose gradient is that of one of them.
//
// In the model of a DataParallel, each loss counts by its weight: what is differentiated is then
// Σ w·loss. A gradient that goes to another member is multiplied by the weight here, and divided by
// the weight there, where DataParallel multiplies by it later. The weight is that of micro_batch(),
// or of next_weight(), which has to be called before the backward: InvalidArgument in the step that
// finds another one, or where a backward comes to two DataParallels of different weights. A
// backward that comes to no parameter of a DataParallel has weight 1. The loss of a worker of
// weight 0, as of one that has no rows, gives nothing; where a gradient of others' losses would be
// lost there, of rows that it has or on its way to other workers, its step is InvalidArgument.
//
// Each call that has a gradient makes a collective of the same group in backward. So every member's
// backward() must come to it, in the same order, as it does where all compute the same expression:
// a result that one leaves out of its loss, or another order, is a Mismatch that names both calls.
// A result needs a gradient where gradients are recorded and its type is floating, whether or not
// this member's input does: another one's may. A member that has no result (of reduce() and
// gather() who is not the root, of send() the sender) gets an empty tensor that stands for it:
// attach() makes it part of the loss.
//
// Shapes: members' tensors are contiguous, or are made so, of one type, on the CPU or a device.
// Where rows are joined or given apart they run along dim 0; the other dims are the same on all, of
// who has no rows as well: others are a Mismatch that names both.
//
// Threads: as Group. Failure: that of Group; a tensor without strides, as sparse ones, is
// Unsupported, and so are second derivatives. Numbers of rows that are negative, or more than
// memory can hold, are InvalidArgument.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/group.h"

namespace tutti::ops {

/// The reduction over members, on all of them. The gradient of a sum or a mean goes to every
/// member; that of a maximum or minimum, element by element, to the member that has it, the lowest
/// rank where several do; that of a product is the product of the others' values, also where some
/// are zero, for which it takes size() times the memory of `x` between forward and backward. No
/// other reductions.
torch::Tensor all_reduce(const Group& group, const torch::Tensor& x, Reduction reduction,
                         const CollectiveOptions& options = {});
/// The sum or the mean, on `root` alone.
torch::Tensor reduce(const Group& group, const torch::Tensor& x, Reduction reduction, int root,
                     const CollectiveOptions& options = {});
/// Rows [rows[0] + … + rows[rank − 1], …) of the sum or the mean; equal shares where `rows` is
/// empty.
torch::Tensor reduce_scatter(const Group& group, const torch::Tensor& x, Reduction reduction,
                             std::span<const std::int64_t> rows = {},
                             const CollectiveOptions& options = {});
/// All members' rows, in the order of ranks. Members may have different numbers of them, none too.
torch::Tensor all_gather(const Group& group, const torch::Tensor& x,
                         const CollectiveOptions& options = {});
/// The same, on `root` alone.
torch::Tensor gather(const Group& group, const torch::Tensor& x, int root,
                     const CollectiveOptions& options = {});
/// What `root` has. `x` of the others gives shape and type.
torch::Tensor broadcast(const Group& group, const torch::Tensor& x, int root,
                        const CollectiveOptions& options = {});
/// `rows[r]` of `root`'s rows for each member r. `x` of the others gives type and the other dims.
torch::Tensor scatter(const Group& group, const torch::Tensor& x,
                      std::span<const std::int64_t> rows, int root,
                      const CollectiveOptions& options = {});
/// The first given[0] rows go to rank 0, the next given[1] to rank 1, …; back come taken[r] from
/// each rank r, joined. exchange_rows() finds `taken`.
torch::Tensor all_to_all(const Group& group, const torch::Tensor& x,
                         std::span<const std::int64_t> given, std::span<const std::int64_t> taken,
                         const CollectiveOptions& options = {});
/// How many rows each member gives to this one, from how many this one gives to each. Collective.
std::vector<std::int64_t> exchange_rows(const Group& group, std::span<const std::int64_t> given,
                                        const CollectiveOptions& options = {});

/// `x` itself, as a view of it; its gradients are added over the members. For a value that all have
/// alike and that each uses for its part of the work. To change the view in place is torch's error,
/// as of an input that a function of torch's returns.
torch::Tensor copy_to_group(const Group& group, const torch::Tensor& x,
                            const CollectiveOptions& options = {});
/// The sum over members; each one's gradient is that of its own result. For partial results of
/// which all then compute the same loss, which is of the same weight on all.
torch::Tensor reduce_from_group(const Group& group, const torch::Tensor& x,
                                const CollectiveOptions& options = {});

/// A message to another member, in the order of Group::send; its gradient comes back.
/// Group::connect makes the way. The empty result stands for what the other makes of it.
torch::Tensor send(const Group& group, const torch::Tensor& x, int to,
                   const CollectiveOptions& options = {});
/// What `from` sends, in the shape and type of `like`: others are a Mismatch that names both.
torch::Tensor receive(const Group& group, const torch::Tensor& like, int from,
                      const CollectiveOptions& options = {});

/// How much the loss of the backward that runs on this thread counts among the group: the weight of
/// the DataParallel to whose parameters it comes, or of the micro_batch() in which it runs; 1 where
/// nobody weighs it, in a group of one, and outside of a backward. For the gradient of a layer that
/// adds up what members' losses give.
double loss_weight(const Group& group);
/// While it lives, operations that this thread calls leave gradients as they are: for a layer that
/// weighs them itself, by loss_weight(), so that what it adds up over the members is Σ w·g.
class [[nodiscard]] UnweightedGuard {
 public:
  UnweightedGuard();
  ~UnweightedGuard();
  UnweightedGuard(const UnweightedGuard&) = delete;
  UnweightedGuard& operator=(const UnweightedGuard&) = delete;
};

/// `loss`, whose backward() comes to these results as well, with a gradient of zero.
torch::Tensor attach(const torch::Tensor& loss, const std::vector<torch::Tensor>& results);
/// loss.backward(), and where it throws Group::fail(): others wait in the collectives of theirs,
/// and get PeerFailed at once.
void backward(const Group& group, const torch::Tensor& loss);

}  // namespace tutti::ops
