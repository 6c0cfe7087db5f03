#include "tutti/group.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/timeline.h"
#include "comm/check_operation.h"
#include "comm/group_state.h"
#include "comm/local/local_collectives.h"
#include "job/job_state.h"

namespace tutti {
namespace {

std::vector<int> all_ranks(const Job& job) {
  std::vector<int> ranks(static_cast<std::size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Operation make(OperationKind kind, ConstView in, View out, const CollectiveOptions& options) {
  Operation operation;
  operation.kind = kind;
  operation.in = in;
  operation.out = out;
  operation.label = options.label;
  operation.layout = options.layout;
  operation.deadline = options.deadline;
  return operation;
}

Operation all_reduce_of(ConstView in, View out, Reduction reduction,
                        const CollectiveOptions& options) {
  Operation operation = make(OperationKind::all_reduce, in, out, options);
  operation.reduction = reduction;
  return operation;
}

Operation reduce_of(ConstView in, View out, Reduction reduction, int root,
                    const CollectiveOptions& options) {
  Operation operation = make(OperationKind::reduce, in, out, options);
  operation.reduction = reduction;
  operation.root = root;
  return operation;
}

Operation reduce_scatter_of(ConstView in, View out, Reduction reduction,
                            const CollectiveOptions& options) {
  Operation operation = make(OperationKind::reduce_scatter, in, out, options);
  operation.reduction = reduction;
  return operation;
}

Operation gather_of(ConstView in, View out, std::span<const std::int64_t> counts,
                    const CollectiveOptions& options) {
  Operation operation = make(OperationKind::all_gather, in, out, options);
  operation.counts = counts;
  return operation;
}

Operation broadcast_of(View inout, int root, const CollectiveOptions& options) {
  Operation operation = make(OperationKind::broadcast, inout, inout, options);
  operation.root = root;
  return operation;
}

std::uint64_t start(const GroupState& group, const Operation& operation) {
  check_operation(operation, group.rank(), group.size());
  return group.collectives().start(operation);
}

void run(const GroupState& group, const Operation& operation) {
  const TimelineSpan span(group.job().timeline(), name_of(operation.kind));
  group.collectives().wait(start(group, operation));
}

SharedMemory allocate_blocks(const GroupState& group, const MemoryRequest& request) {
  MemoryBlocks blocks = group.collectives().allocate(request);
  return {group.rank(), request.bytes, std::move(blocks.of_members), std::move(blocks.owner)};
}

Work start_work(const std::shared_ptr<GroupState>& group, Operation operation) {
  operation.in_background = true;
  return {group, start(*group, operation)};
}

}  // namespace

Group::Group(const Job& job, std::string name) : Group(job, all_ranks(job), std::move(name)) {}

Group::Group(const Job& job, std::vector<int> ranks, std::string name)
    : state_(std::make_shared<GroupState>(job.state(), std::move(ranks), std::move(name))) {}

int Group::rank() const { return state_->rank(); }
int Group::size() const { return state_->size(); }
int Group::job_rank(int rank) const { return state_->ranks().at(static_cast<std::size_t>(rank)); }
const std::string& Group::name() const { return state_->name(); }

Group Group::split(int colour, std::string name) const {
  std::vector<std::int32_t> colours(static_cast<std::size_t>(size()));
  const std::int32_t mine = colour;
  all_gather({&mine, 1, DType::int32}, {colours.data(), size(), DType::int32},
             {.label = "split \"" + name + '"'});
  std::vector<int> ranks;
  for (int member = 0; member < size(); ++member) {
    if (colours[static_cast<std::size_t>(member)] == mine) ranks.push_back(job_rank(member));
  }
  return Group(
      std::make_shared<GroupState>(state_->shared_job(), std::move(ranks), std::move(name)));
}

SharedMemory Group::allocate(std::size_t bytes, std::string_view what,
                             std::optional<std::size_t> needed) const {
  return allocate_blocks(
      *state_, {.bytes = bytes, .needed = std::min(needed.value_or(bytes), bytes), .what = what});
}

SharedMemory Group::allocate_common(std::size_t bytes, std::string_view what) const {
  const auto members = static_cast<std::size_t>(size());
  return allocate_blocks(*state_, {.bytes = bytes,
                                   .needed = bytes / members + (bytes % members != 0),
                                   .what = what,
                                   .common = true});
}

void Group::all_reduce(View inout, Reduction reduction, const CollectiveOptions& options) const {
  run(*state_, all_reduce_of(inout, inout, reduction, options));
}

void Group::all_reduce(ConstView in, View out, Reduction reduction,
                       const CollectiveOptions& options) const {
  run(*state_, all_reduce_of(in, out, reduction, options));
}

void Group::reduce(ConstView in, View out, Reduction reduction, int root,
                   const CollectiveOptions& options) const {
  run(*state_, reduce_of(in, out, reduction, root, options));
}

void Group::reduce_scatter(ConstView in, View out, Reduction reduction,
                           const CollectiveOptions& options) const {
  run(*state_, reduce_scatter_of(in, out, reduction, options));
}

void Group::all_gather(ConstView in, View out, const CollectiveOptions& options) const {
  run(*state_, gather_of(in, out, {}, options));
}

void Group::all_gather_variable(ConstView in, View out, std::span<const std::int64_t> counts,
                                const CollectiveOptions& options) const {
  run(*state_, gather_of(in, out, counts, options));
}

void Group::broadcast(View inout, int root, const CollectiveOptions& options) const {
  run(*state_, broadcast_of(inout, root, options));
}

void Group::barrier(const CollectiveOptions& options) const {
  run(*state_, make(OperationKind::barrier, {}, {}, options));
}

Work Group::start_all_reduce(ConstView in, View out, Reduction reduction,
                             const CollectiveOptions& options) const {
  return start_work(state_, all_reduce_of(in, out, reduction, options));
}

Work Group::start_reduce(ConstView in, View out, Reduction reduction, int root,
                         const CollectiveOptions& options) const {
  return start_work(state_, reduce_of(in, out, reduction, root, options));
}

Work Group::start_reduce_scatter(ConstView in, View out, Reduction reduction,
                                 const CollectiveOptions& options) const {
  return start_work(state_, reduce_scatter_of(in, out, reduction, options));
}

Work Group::start_all_gather(ConstView in, View out, const CollectiveOptions& options) const {
  return start_work(state_, gather_of(in, out, {}, options));
}

Work Group::start_all_gather_variable(ConstView in, View out, std::span<const std::int64_t> counts,
                                      const CollectiveOptions& options) const {
  return start_work(state_, gather_of(in, out, counts, options));
}

Work Group::start_broadcast(View inout, int root, const CollectiveOptions& options) const {
  return start_work(state_, broadcast_of(inout, root, options));
}

Work Group::start_barrier(const CollectiveOptions& options) const {
  return start_work(state_, make(OperationKind::barrier, {}, {}, options));
}

}  // namespace tutti
