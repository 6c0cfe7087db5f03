#include "tutti/group.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/timeline.h"
#include "comm/channels.h"
#include "comm/check_operation.h"
#include "comm/device_copy.h"
#include "comm/group_state.h"
#include "comm/host_link.h"
#include "comm/local/group_lanes.h"
#include "job/alone.h"
#include "job/job_state.h"
#include "kernels/hash.h"

namespace tutti {
namespace {

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

/// Parts of unequal sizes; absent where all are equal.
using Counts = std::optional<std::span<const std::int64_t>>;

Operation with_parts(OperationKind kind, ConstView in, View out, const Counts& counts,
                     const CollectiveOptions& options) {
  Operation operation = make(kind, in, out, options);
  operation.is_variable = counts.has_value();
  operation.counts = counts.value_or(std::span<const std::int64_t>());
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

Operation reduce_scatter_of(ConstView in, View out, const Counts& counts, Reduction reduction,
                            const CollectiveOptions& options) {
  Operation operation = with_parts(OperationKind::reduce_scatter, in, out, counts, options);
  operation.reduction = reduction;
  return operation;
}

Operation all_gather_of(ConstView in, View out, const Counts& counts,
                        const CollectiveOptions& options) {
  return with_parts(OperationKind::all_gather, in, out, counts, options);
}

Operation gather_of(ConstView in, View out, const Counts& counts, int root,
                    const CollectiveOptions& options) {
  Operation operation = with_parts(OperationKind::gather, in, out, counts, options);
  operation.root = root;
  return operation;
}

/// `in` means something on the root alone.
Operation scatter_of(const GroupState& group, ConstView in, View out, const Counts& counts,
                     int root, const CollectiveOptions& options) {
  if (group.rank() != root) in = {nullptr, 0, out.dtype};
  Operation operation = with_parts(OperationKind::scatter, in, out, counts, options);
  operation.root = root;
  return operation;
}

Operation all_to_all_of(ConstView in, const Counts& given, View out,
                        std::span<const std::int64_t> taken, const CollectiveOptions& options) {
  Operation operation = with_parts(OperationKind::all_to_all, in, out, given, options);
  operation.taken = taken;
  return operation;
}

Operation broadcast_of(View inout, int root, const CollectiveOptions& options) {
  Operation operation = make(OperationKind::broadcast, inout, inout, options);
  operation.root = root;
  return operation;
}

/// The sender's data are read alone.
Operation message_of(const GroupState& way, View data, bool is_sender,
                     const CollectiveOptions& options) {
  Operation operation = make(OperationKind::message, data, data, options);
  operation.root = is_sender ? way.rank() : 1 - way.rank();
  return operation;
}

View readable(ConstView data) { return {const_cast<void*>(data.data), data.count, data.dtype}; }

std::uint64_t start(const GroupState& group, const Operation& operation) {
  check_operation(operation, group.rank(), group.size());
  require_together(group.job(), name_of(operation.kind), group.name());
  return group.collectives().start(operation);
}

/// A barrier is over when all calls before it are, whatever their lanes.
bool ends_after_all(const Operation& operation) { return operation.kind == OperationKind::barrier; }

void run(const GroupState& group, const Operation& operation) {
  const TimelineSpan span(group.job().timeline(), name_of(operation.kind));
  GroupLanes& collectives = group.collectives();
  const std::uint64_t call = start(group, operation);
  ends_after_all(operation) ? collectives.wait_up_to(call) : collectives.wait(call);
}

std::shared_ptr<GroupState> make_group(const std::shared_ptr<JobState>& job, std::vector<int> ranks,
                                       std::string name, const GroupOptions& options) {
  require_together(*job, "the making", name);
  return std::make_shared<GroupState>(job, std::move(ranks), std::move(name), options);
}

SharedMemory allocate_blocks(const GroupState& group, const MemoryRequest& request) {
  require_together(group.job(), request.common ? "allocate_common()" : "allocate()", group.name());
  MemoryBlocks blocks = group.collectives().allocate(request);
  return {group.rank(), request.bytes, std::move(blocks.of_members), std::move(blocks.owner)};
}

/// By reference: a copy of an Operation is a tenth of a small call's time.
template <class Result>
Result perform(const std::shared_ptr<GroupState>& group, Operation&& operation) {
  if constexpr (std::is_void_v<Result>) {
    run(*group, operation);
  } else {
    operation.in_background = true;
    return {group, start(*group, operation), ends_after_all(operation)};
  }
}

}  // namespace

template <class Result>
Result Collectives<Result>::all_reduce(View inout, Reduction reduction,
                                       const CollectiveOptions& options) const {
  return perform<Result>(state_, all_reduce_of(inout, inout, reduction, options));
}

template <class Result>
Result Collectives<Result>::all_reduce(ConstView in, View out, Reduction reduction,
                                       const CollectiveOptions& options) const {
  return perform<Result>(state_, all_reduce_of(in, out, reduction, options));
}

template <class Result>
Result Collectives<Result>::reduce(ConstView in, View out, Reduction reduction, int root,
                                   const CollectiveOptions& options) const {
  return perform<Result>(state_, reduce_of(in, out, reduction, root, options));
}

template <class Result>
Result Collectives<Result>::reduce_scatter(ConstView in, View out, Reduction reduction,
                                           const CollectiveOptions& options) const {
  return perform<Result>(state_, reduce_scatter_of(in, out, std::nullopt, reduction, options));
}

template <class Result>
Result Collectives<Result>::reduce_scatter_variable(ConstView in, View out,
                                                    std::span<const std::int64_t> counts,
                                                    Reduction reduction,
                                                    const CollectiveOptions& options) const {
  return perform<Result>(state_, reduce_scatter_of(in, out, counts, reduction, options));
}

template <class Result>
Result Collectives<Result>::all_gather(ConstView in, View out,
                                       const CollectiveOptions& options) const {
  return perform<Result>(state_, all_gather_of(in, out, std::nullopt, options));
}

template <class Result>
Result Collectives<Result>::all_gather_variable(ConstView in, View out,
                                                std::span<const std::int64_t> counts,
                                                const CollectiveOptions& options) const {
  return perform<Result>(state_, all_gather_of(in, out, counts, options));
}

template <class Result>
Result Collectives<Result>::gather(ConstView in, View out, int root,
                                   const CollectiveOptions& options) const {
  return perform<Result>(state_, gather_of(in, out, std::nullopt, root, options));
}

template <class Result>
Result Collectives<Result>::gather_variable(ConstView in, View out,
                                            std::span<const std::int64_t> counts, int root,
                                            const CollectiveOptions& options) const {
  return perform<Result>(state_, gather_of(in, out, counts, root, options));
}

template <class Result>
Result Collectives<Result>::broadcast(View inout, int root,
                                      const CollectiveOptions& options) const {
  return perform<Result>(state_, broadcast_of(inout, root, options));
}

template <class Result>
Result Collectives<Result>::scatter(ConstView in, View out, int root,
                                    const CollectiveOptions& options) const {
  return perform<Result>(state_, scatter_of(*state_, in, out, std::nullopt, root, options));
}

template <class Result>
Result Collectives<Result>::scatter_variable(ConstView in, View out,
                                             std::span<const std::int64_t> counts, int root,
                                             const CollectiveOptions& options) const {
  return perform<Result>(state_, scatter_of(*state_, in, out, counts, root, options));
}

template <class Result>
Result Collectives<Result>::all_to_all(ConstView in, View out,
                                       const CollectiveOptions& options) const {
  return perform<Result>(state_, all_to_all_of(in, std::nullopt, out, {}, options));
}

template <class Result>
Result Collectives<Result>::all_to_all_variable(ConstView in, std::span<const std::int64_t> given,
                                                View out, std::span<const std::int64_t> taken,
                                                const CollectiveOptions& options) const {
  return perform<Result>(state_, all_to_all_of(in, given, out, taken, options));
}

template <class Result>
Result Collectives<Result>::barrier(const CollectiveOptions& options) const {
  return perform<Result>(state_, make(OperationKind::barrier, {}, {}, options));
}

template <class Result>
Result Collectives<Result>::send(ConstView in, int to, const CollectiveOptions& options) const {
  const auto& way = state_->channels().way(state_->rank(), to);
  return perform<Result>(way, message_of(*way, readable(in), true, options));
}

template <class Result>
Result Collectives<Result>::receive(View out, int from, const CollectiveOptions& options) const {
  const auto& way = state_->channels().way(from, state_->rank());
  return perform<Result>(way, message_of(*way, out, false, options));
}

template class Collectives<void>;
template class Collectives<Work>;

Work start_all_reduce(const Group& group, View inout, Reduction reduction,
                      const CollectiveOptions& options, DeviceCopy copy) {
  Operation operation = all_reduce_of(inout, inout, reduction, options);
  operation.in_background = true;
  operation.input = std::move(copy.input);
  operation.original = copy.original;
  return {group.state(), start(*group.state(), operation), false, std::move(copy.give)};
}

void require_apart(const Group& group, const ConstView& original) {
  group.state()->collectives().require_apart(original);
}

std::vector<int> all_ranks(const Job& job) {
  std::vector<int> ranks(static_cast<std::size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Group::Group(const Job& job, std::string name, const GroupOptions& options)
    : Group(job, all_ranks(job), std::move(name), options) {}

Group::Group(const Job& job, std::vector<int> ranks, std::string name, const GroupOptions& options)
    : Collectives(make_group(job.state(), std::move(ranks), std::move(name), options)) {}

int Group::rank() const { return state_->rank(); }
int Group::size() const { return state_->size(); }
int Group::job_rank(int rank) const { return state_->ranks().at(static_cast<std::size_t>(rank)); }
const std::string& Group::name() const { return state_->name(); }

Group Group::split(int colour, std::string name, const GroupOptions& options) const {
  require_together(state_->job(), "split()", this->name());
  std::vector<std::int32_t> colours(static_cast<std::size_t>(size()));
  const std::int32_t mine = colour;
  all_gather({&mine, 1, DType::int32}, {colours.data(), size(), DType::int32},
             {.label = "split \"" + name + '"'});
  std::vector<int> ranks;
  for (int member = 0; member < size(); ++member) {
    if (colours[static_cast<std::size_t>(member)] == mine) ranks.push_back(job_rank(member));
  }
  return Group(make_group(state_->shared_job(), std::move(ranks), std::move(name), options));
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

void Group::fail(std::string_view why) const { state_->collectives().fail(why); }

void Group::connect(std::span<const std::pair<int, int>> pairs) const {
  std::string text;
  for (const auto& [one, other] : pairs) text += fmt::format(" {}-{}", one, other);
  state_->channels().check(pairs);
  barrier({.label = fmt::format("connect {:x}:{}", digest(text), text)});
  state_->channels().connect(pairs);
}

}  // namespace tutti
