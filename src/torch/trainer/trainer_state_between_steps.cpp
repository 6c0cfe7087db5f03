// What a Trainer does between steps: changes by hand, checkpoints, the hash of all.

#include <fmt/format.h>

#include <array>
#include <exception>
#include <utility>

#include "base/exception_text.h"
#include "base/log_line.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "kernels/hash.h"
#include "torch/trainer/trainer_checkpoint.h"
#include "torch/trainer/trainer_settings.h"
#include "torch/trainer/trainer_state.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

template <class Thrown>
bool is(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Thrown&) {
    return true;
  } catch (...) {
    return false;
  }
}

View view_of_flags(std::vector<std::uint8_t>& flags) {
  return {flags.data(), static_cast<std::int64_t>(flags.size()), DType::uint8};
}

}  // namespace

CollectiveOptions TrainerState::waits(const char* label) const {
  return {.label = label, .deadline = options_.deadline};
}

/// All workers are here and `check` holds on all of them; where it throws, it is rethrown there and
/// is InvalidArgument elsewhere.
void TrainerState::begin_on_all(const char* what, const std::function<void()>& check) {
  require_between_steps(what);  // alike on all
  std::exception_ptr error;
  std::string text;
  try {
    check();
  } catch (...) {
    error = std::current_exception();
    text = exception_text();
    if (text.empty()) text = "an exception without a text";
  }
  const auto all = gather_bytes(group_, std::as_bytes(std::span(text)), waits(what));
  if (error) std::rethrow_exception(error);
  for (int r = 0; r < group_.size(); ++r) {
    const auto& said = all[static_cast<std::size_t>(r)];
    if (said.empty()) continue;
    throw InvalidArgument(
        fmt::format("{} failed on rank {}: {}", what, group_.job_rank(r),
                    std::string_view(reinterpret_cast<const char*>(said.data()), said.size())));
  }
}

/// Runs `work` on rank 0. Where it throws, returns that there, and what it said elsewhere: Mismatch
/// for one, else InvalidArgument.
template <class Work>
std::exception_ptr TrainerState::on_first_rank(const char* what, const Work& work) {
  struct {
    bool is_mismatch = false;
    std::array<char, 1024> text{};
  } said;
  std::exception_ptr error;
  if (group_.rank() == 0) {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
      fmt::format_to_n(said.text.data(), said.text.size() - 1, "{} failed on rank {}: {}", what,
                       group_.job_rank(0), exception_text());
      said.is_mismatch = is<Mismatch>(error);
    }
  }
  group_.broadcast({&said, sizeof said, DType::uint8}, 0, waits(what));
  if (error || said.text[0] == 0) return error;
  if (said.is_mismatch) return std::make_exception_ptr(Mismatch(said.text.data()));
  return std::make_exception_ptr(InvalidArgument(said.text.data()));
}

void TrainerState::require_log() {
  const auto error = on_first_rank("the step log", [&] {
    if (!options_.log.empty()) StepLog::check(*host_files(), options_.log);
  });
  if (error) std::rethrow_exception(error);
}

void TrainerState::edit(const std::function<void()>& change) {
  std::exception_ptr error;
  exchange_->run_collectives([&] {
    // What was written by hand before is taken over with the rest.
    begin_on_all("edit()", [&] { model_.require_all_in_place(); });
    Written written;
    error = on_first_rank("edit()", [&] { edit_here(change, written); });
    std::uint8_t has_moved = group_.rank() == 0 && moved();
    group_.broadcast({&has_moved, 1, DType::uint8}, 0, waits("edit()"));
    written.buffers.resize(model_.buffers().size());
    group_.broadcast(view_of_flags(written.buffers), 0, waits("edit()"));
    if (has_moved == 0) buffers_->send_from_first_rank(written.buffers);
    if (replicas_) spread(written);
    parameters_->written();
    expect_values();
  });
  if (error) std::rethrow_exception(error);
}

bool TrainerState::moved() const {
  try {
    model_.require_all_in_place();
    return false;
  } catch (const InvalidArgument&) {
    return true;
  }
}

/// Per-replica parameters that any worker wrote to, before or in edit(), become everybody's.
void TrainerState::spread(Written& written) {
  if (group_.rank() != 0) written.parameters = replicas_->written({});
  written.parameters.resize(model_.parameters().size());  // where edit_here() did not get so far
  group_.all_reduce(view_of_flags(written.parameters), Reduction::max, waits("edit()"));
  replicas_->spread(written.parameters, group_.rank() == 0);
  group_.barrier(waits("edit()"));
}

/// Rank 0's. What a change has left when it throws counts as well.
void TrainerState::edit_here(const std::function<void()>& change, Written& written) {
  std::exception_ptr error;
  std::vector<torch::Tensor> before;
  if (replicas_) before = replicas_->snapshot();
  std::vector<std::uint32_t> versions;
  for (const auto& item : model_.buffers()) versions.push_back(item.second._version());
  try {
    change();
  } catch (...) {
    error = std::current_exception();
  }
  shared_->refresh_masters();
  for (std::size_t b = 0; b < versions.size(); ++b) {
    written.buffers.push_back(model_.buffers()[b].second._version() != versions[b]);
  }
  if (replicas_) written.parameters = replicas_->written(before);
  if (error) std::rethrow_exception(error);
  model_.require_all_in_place();
}

TensorFiles TrainerState::tensor_files() const {
  NamedTensors masters;
  NamedTensors states;
  NamedTensors averages;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& [name, tensor] = model_.parameters()[p];
    const auto type = scalar_type_of(exchange_->plan().parameters()[p].node_type);
    const auto view = [&](std::byte* at) {
      return torch::from_blob(at, tensor.sizes(), tensor.strides(),
                              torch::TensorOptions().dtype(type));
    };
    if (shared_->master(p) != shared_->value(p)) {
      masters.emplace_back(name, view(shared_->master(p)));
    }
    for (int k = 0; k < shared_->states(p); ++k) {
      states.emplace_back(fmt::format("{}/{}", name, state_names_[p][static_cast<std::size_t>(k)]),
                          view(shared_->state(p, k)));
    }
    if (averages_) averages.emplace_back(name, view(shared_->average(p)));
  }
  TensorFiles files = {{kParametersFile, model_.parameters()},
                       {kMastersFile, masters},
                       {kOptimizerFile, states},
                       {kBuffersFile, model_.buffers()}};
  if (averages_) files.emplace_back(kAveragesFile, averages);
  if (coded_ && coded_->board().has_residuals()) {
    files.emplace_back(kResidualsFile, kept_of_gradients());
  }
  if (replicas_) {
    auto own = replicas_->tensors();
    for (auto& item : buffers_->replica_tensors()) own.push_back(std::move(item));
    files.emplace_back(kReplicaFile, std::move(own));
  }
  if (replicas_ && replicas_->averaging() != nullptr) {
    files.emplace_back(kAveragingFile, replicas_->kept_tensors());
  }
  return files;
}

NamedTensors TrainerState::kept_of_gradients() const {
  NamedTensors kept;
  const auto& board = coded_->board();
  const auto plan = exchange_->plan().parameters();
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& [name, tensor] = model_.parameters()[p];
    for (std::size_t l = 0; l < board.logical_workers() && plan[p].is_partitioned(); ++l) {
      for (int k = 0; k < board.kept(); ++k) {
        const auto which = static_cast<Kept>(k);
        kept.emplace_back(
            fmt::format("{}/{}.{}", name, which == Kept::residual ? "residual" : "velocity", l),
            torch::from_blob(board.kept(which, l, p), tensor.sizes(), tensor.strides(),
                             torch::kFloat32));
      }
    }
  }
  return kept;
}

void TrainerState::save(const std::string& directory, const SaveOptions& options) {
  std::exception_ptr error;
  exchange_->run_collectives([&] {
    begin_on_all("save()", [&] { require_untouched(); });
    const auto states =
        ShardStates::unpack(gather_bytes(group_, states_.packed(), waits("save()")));
    const auto numbers = all_numbers();
    error = on_first_rank("save()", [&] { write(directory, options, states, numbers); });
  });
  if (error) std::rethrow_exception(error);
}

/// Rank 0's.
void TrainerState::write(const std::string& directory, const SaveOptions& options,
                         const NamedTensors& states, const nlohmann::json& numbers) {
  CheckpointStore store(host_files(), directory, {.keep = options.keep});
  const auto newest = store.newest();
  auto files = tensor_files();
  files.emplace_back(kShardStatesFile, states);
  save_checkpoint(store, run(), facts_,
                  {steps_, dropped_in_a_row_, data_.position(), scale_,
                   averages_ ? averages_->steps() : 0, update_->updates(),
                   replicas_ ? replicas_->position() : ReplicaPosition(), numbers, turns_.latest()},
                  structure_of(module_), files);
  if (newest > steps_ && !std::exchange(said_newer_, true)) {
    log_warning(
        fmt::format("the checkpoint of step {} lies beside one of step {}, which was there "
                    "before: load(\"{}\") will take that one",
                    steps_, *newest, directory));
  }
}

const std::string& TrainerState::run() const { return group_.state()->job().identity().run; }

/// What all workers' optimizers of torch keep in numbers.
nlohmann::json TrainerState::all_numbers() const {
  auto all = nlohmann::json::object();
  const auto mine = torch_optimizers_->numbers().dump();
  for (const auto& part :
       gather_bytes(group_, std::as_bytes(std::span(mine)), waits("optimizer numbers"))) {
    const auto* const begin = reinterpret_cast<const char*>(part.data());
    all.update(nlohmann::json::parse(begin, begin + part.size()));
  }
  return all;
}

std::optional<std::int64_t> TrainerState::load(const std::string& directory,
                                               const LoadOptions& options) {
  std::optional<std::int64_t> step;
  exchange_->run_collectives([&] {
    begin_on_all("load()", [&] { model_.require_all_in_place(); });
    Found found;
    const auto error = on_first_rank("load()", [&] { found = read(directory, options); });
    if (error) std::rethrow_exception(error);
    const auto first_says = [&](std::span<const std::byte> bytes) {
      return gather_bytes(group_, bytes, waits("load()")).front();
    };
    const auto text = first_says(std::as_bytes(std::span(found.position)));
    const auto packed = first_says(found.states);
    if (text.empty()) return;
    const auto* const begin = reinterpret_cast<const char*>(text.data());
    take_over(position_of(nlohmann::json::parse(begin, begin + text.size())));
    states_.take(ShardStates::unpack({&packed, 1}), mine_);
    buffers_->send_all_from_first_rank();
    parameters_->written();
    expect_values();
    seed_between_steps();
    step = steps_;
  });
  return step;
}

/// Rank 0's: fills all tensors; none where it throws InvalidArgument.
TrainerState::Found TrainerState::read(const std::string& directory, const LoadOptions& options) {
  if (is_checkpoint_folder(*host_files(), directory)) {
    throw InvalidArgument(
        fmt::format("{} is one checkpoint: give the folder that it lies in", directory));
  }
  if (options.of_this_run && run().empty()) {
    throw InvalidArgument("load(): of_this_run in a job that has no identity of a run");
  }
  const CheckpointStore store(host_files(), directory);
  const auto checkpoint = open_checkpoint(
      store, facts_, options.fall_back, options.of_this_run ? std::optional(run()) : std::nullopt);
  if (!checkpoint) return {};
  const auto shard_states = load_tensors(*checkpoint, kShardStatesFile);
  ShardStates::check_names(shard_states, options_.shards);
  const auto position = position_of(*checkpoint, model_.parameters().size());
  DataOrder(options_.seed, options_.order)
      .restore(position.data);  // throws where it makes no sense
  torch_optimizers_->check(position.optimizer_numbers);
  if (replicas_) replicas_->check(position.own);
  Found found{to_json(position).dump(), ShardStates::pack(shard_states)};
  fill(*checkpoint, tensor_files());
  const auto differences = arithmetic_differences(*checkpoint);
  if (!differences.empty()) {
    log_warning(
        fmt::format("trainer: {} was computed with other arithmetic; bits may come out otherwise "
                    "than in a run that never stopped:\n{}",
                    checkpoint->folder().string(), differences));
  }
  log_info(fmt::format("trainer: goes on from {}", checkpoint->folder().string()));
  return found;
}

void TrainerState::take_over(const RunPosition& position) {
  log_.reset();
  if (audit_) audit_->start_anew();
  steps_ = position.steps;
  dropped_in_a_row_ = position.dropped_in_a_row;
  data_.restore(position.data);
  note_samples();
  turns_ = Turns(position.turns);
  resumes_ = true;
  scale_ = position.loss_scale;
  update_->updates() = position.updates;
  torch_optimizers_->restore(position.optimizer_numbers);
  if (replicas_) replicas_->restore(position.own);
  if (averages_) averages_->restore(position.averaged_steps);
}

bool TrainerState::hashes(std::int64_t step) const {
  return options_.hash_every > 0 && step % options_.hash_every == 0;
}

/// The step is over, whether it can be logged or not.
void TrainerState::log(const StepResult& result) noexcept {
  if (group_.rank() != 0 || options_.log.empty()) return;
  try {
    if (write_log(result)) log_failed_ = false;
  } catch (...) {
    if (!std::exchange(log_failed_, true)) {
      log_warning(fmt::format("step {} is missing in the step log, perhaps steps after it too: {}",
                              result.step, exception_text()));
    }
  }
}

/// Rank 0's. The others go on meanwhile: nothing can be written before it publishes its next step.
/// False where nothing was due.
bool TrainerState::write_log(const StepResult& result) {
  if (!log_) log_ = std::make_unique<StepLog>(host_files(), options_.log, facts_, result.step - 1);
  const bool has_metrics = options_.metrics_every > 0 && result.step % options_.metrics_every == 0;
  if (has_metrics) {
    log_->metrics(result.step, {.applied = result.applied,
                                .dropped_because = result.dropped_because,
                                .dropped_locally = result.dropped_locally,
                                .loss = result.loss,
                                .weight = result.weight,
                                .gradient_norm = result.gradient_norm,
                                .rate_factor = result.rate_factor,
                                .loss_scale = result.loss_scale,
                                .metrics = result.metrics});
  }
  if (hashes(result.step)) {
    log_->digests(result.step, digests_of(tensor_files()));
  }
  return has_metrics || hashes(result.step);
}

std::string TrainerState::state_sha256() const {
  Sha256 hash;
  const int kept = coded_ ? coded_->board().kept() : 0;
  const auto logical_workers = coded_ ? coded_->board().logical_workers() : 0;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& entry = exchange_->plan().parameters()[p];
    const auto master_bytes = static_cast<std::size_t>(entry.spec.count) * size_of(entry.node_type);
    hash.update(model_.name(p).data(), model_.name(p).size());
    hash.update(shared_->value(p),
                static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype));
    hash.update(shared_->master(p), master_bytes);
    for (int k = 0; k < shared_->states(p); ++k) hash.update(shared_->state(p, k), master_bytes);
    hash.update(&update_->updates()[p], sizeof(std::int64_t));
    for (std::size_t l = 0; l < logical_workers && entry.is_partitioned(); ++l) {
      for (int k = 0; k < kept; ++k) {
        hash.update(coded_->board().kept(static_cast<Kept>(k), l, p),
                    static_cast<std::size_t>(entry.spec.count) * sizeof(float));
      }
    }
  }
  if (replicas_) replicas_->add_to(hash);
  auto buffers = buffers_->tensors();
  for (auto& item : buffers_->replica_tensors()) buffers.push_back(std::move(item));
  for (const auto& [name, tensor] : buffers) {
    hash.update(name.data(), name.size());
    hash.update(tensor.data_ptr(), tensor.nbytes());
  }
  return hash.hex();
}

}  // namespace tutti
