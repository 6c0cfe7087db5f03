#include "torch/trainer/trainer_edit.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/group_state.h"
#include "comm/host_copies.h"
#include "job/alone.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr const char* kEdit = "edit()";

/// Flags of the parameters and buffers that the program has written, and of the parameters that
/// closures have spoiled: of any worker at first, then of those that are not written anew.
struct Written {
  std::vector<std::uint8_t> parameters;
  std::vector<std::uint8_t> buffers;
  std::vector<std::uint8_t> spoiled;
};

View view_of_flags(std::vector<std::uint8_t>& flags) {
  return {flags.data(), static_cast<std::int64_t>(flags.size()), DType::uint8};
}

/// Rank 0's.
void edit_here(const TrainedModel& trained, const std::function<void()>& change, Written& written) {
  std::exception_ptr error;
  std::vector<torch::Tensor> before;
  if (trained.replicas != nullptr) before = trained.replicas->snapshot();
  const auto& buffers = trained.model.buffers();
  std::vector<std::uint32_t> versions;
  for (const auto& item : buffers) versions.push_back(item.second._version());
  const auto before_change = trained.parameters.versions();
  try {
    const Alone alone(trained.exchange.group().state()->job(),
                      fmt::format("edit() of Trainer \"{}\"", trained.options.name));
    change();
  } catch (...) {
    error = std::current_exception();
  }
  trained.parameters.take_written();
  trained.shared.refresh_masters();
  for (std::size_t b = 0; b < versions.size(); ++b) {
    written.buffers.push_back(buffers[b].second._version() != versions[b]);
  }
  if (trained.replicas != nullptr) written.parameters = trained.replicas->written(before);
  const auto after_change = trained.parameters.versions();
  for (std::size_t p = 0; p < after_change.size(); ++p) {
    if (after_change[p] != before_change[p]) written.spoiled[p] = 0;
  }
  if (error) std::rethrow_exception(error);
  trained.model.require_all_in_place();
  trained.parameters.spoil(written.spoiled);
  trained.parameters.require_not_spoiled();
}

/// Per-replica parameters that any worker has written, before or in edit(), are copied to all
/// replicas.
void spread(const TrainedModel& trained, const BetweenSteps& between, Written& written) {
  const auto& group = between.group();
  auto& replicas = *trained.replicas;
  if (group.rank() != 0) written.parameters = replicas.written({});
  // edit_here() may have failed before it set the sizes.
  written.parameters.resize(trained.model.parameters().size());
  group.all_reduce(view_of_flags(written.parameters), Reduction::max, between.waits(kEdit));
  replicas.spread(written.parameters, group.state()->team().rank == 0);
  group.barrier(between.waits(kEdit));
}

bool has_moved(const WrappedModel& model) {
  try {
    model.require_all_in_place();
    return false;
  } catch (const InvalidArgument&) {
    return true;
  }
}

}  // namespace

std::exception_ptr edit_by_hand(const TrainedModel& trained, const BetweenSteps& between,
                                const std::function<void()>& change,
                                const std::function<void()>& check) {
  const auto& group = between.group();
  between.begin_on_all(kEdit, [&] {
    check();
    trained.model.require_all_in_place();
  });
  if (trained.replicas != nullptr) {
    trained.replicas->land();
    trained.replicas->bring(0);
  }
  Written written;
  written.spoiled = trained.parameters.spoiled();
  group.all_reduce(view_of_flags(written.spoiled), Reduction::max, between.waits(kEdit));
  const auto error = between.on_first_rank(kEdit, [&] { edit_here(trained, change, written); });
  copy_to_hosts(group, trained.shared.memory().data(), trained.shared.bytes(),
                between.waits(kEdit));
  std::uint8_t moved = group.rank() == 0 && has_moved(trained.model);
  group.broadcast({&moved, 1, DType::uint8}, 0, between.waits(kEdit));
  written.buffers.resize(trained.model.buffers().size());
  group.broadcast(view_of_flags(written.buffers), 0, between.waits(kEdit));
  if (moved == 0) trained.buffers.send_from_first_rank(written.buffers);
  if (trained.replicas != nullptr) spread(trained, between, written);
  group.broadcast(view_of_flags(written.spoiled), 0, between.waits(kEdit));
  trained.parameters.written();
  trained.parameters.spoil(std::move(written.spoiled));
  return error;
}

}  // namespace tutti
