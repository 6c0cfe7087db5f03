// What a Trainer does between steps: changes by hand, checkpoints, the hash of all.

#include <fmt/format.h>

#include <array>
#include <exception>

#include "base/exception_text.h"
#include "kernels/hash.h"
#include "sync/gather_bytes.h"
#include "torch/trainer_checkpoint.h"
#include "torch/trainer_settings.h"
#include "torch/trainer_state.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {

CollectiveOptions TrainerState::waits(const char* label) const {
  return {.label = label, .deadline = options_.deadline};
}

/// All workers are here and `check` holds on all of them; where it throws, it is rethrown there and
/// is BadInput elsewhere.
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
    throw BadInput(
        fmt::format("{} failed on rank {}: {}", what, group_.job_rank(r),
                    std::string_view(reinterpret_cast<const char*>(said.data()), said.size())));
  }
}

/// Runs `work` on rank 0. Where it throws, returns that there, and what it said elsewhere.
template <class Work>
std::exception_ptr TrainerState::on_first_rank(const char* what, const Work& work) {
  const auto options = waits(what);
  std::exception_ptr error;
  std::array<char, 1024> text{};
  if (group_.rank() == 0) {
    try {
      work();
    } catch (const std::exception& thrown) {
      error = std::current_exception();
      fmt::format_to_n(text.data(), text.size() - 1, "{} failed on rank {}: {}", what,
                       group_.job_rank(0), thrown.what());
    }
  }
  group_.broadcast({text.data(), static_cast<std::int64_t>(text.size()), DType::uint8}, 0, options);
  if (!error && text[0] != 0) error = std::make_exception_ptr(BadInput(text.data()));
  return error;
}

void TrainerState::edit(const std::function<void()>& change) {
  // What was written by hand before is taken over with the rest.
  begin_on_all("edit()", [&] { model_.require_all_in_place(); });
  const auto error = on_first_rank("edit()", [&] {
    change();
    model_.require_all_in_place();
  });
  if (group_.rank() == 0) shared_->refresh_masters();
  buffers_->send_from_first_rank();
  parameters_->written();
  if (error) std::rethrow_exception(error);
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
  return files;
}

void TrainerState::save(const std::string& directory, const SaveOptions& options) {
  begin_on_all("save()", [&] { require_untouched(); });
  const auto states = ShardStates::unpack(gather_bytes(group_, states_.packed(), waits("save()")));
  const auto numbers = all_numbers();
  const auto error = on_first_rank("save()", [&] {
    CheckpointStore store(host_files(), directory, {.keep = options.keep});
    auto files = tensor_files();
    files.emplace_back(kShardStatesFile, states);
    save_checkpoint(store, facts_,
                    {steps_, dropped_in_a_row_, data_.position(), scale_,
                     averages_ ? averages_->steps() : 0, update_->updates(), numbers},
                    structure_of(module_), files);
  });
  if (error) std::rethrow_exception(error);
}

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
  begin_on_all("load()", [&] { model_.require_all_in_place(); });
  std::string found;  // where the run stands, as JSON; empty where there is no checkpoint
  std::vector<std::byte> states;
  const auto error = on_first_rank("load()", [&] {
    if (is_checkpoint_folder(*host_files(), directory)) {
      throw BadInput(
          fmt::format("{} is one checkpoint: give the folder that it lies in", directory));
    }
    const CheckpointStore store(host_files(), directory);
    const auto checkpoint = open_checkpoint(store, facts_, options.fall_back);
    if (!checkpoint) return;
    const auto shard_states = load_tensors(*checkpoint, kShardStatesFile);
    ShardStates::check_names(shard_states, options_.shards);
    states = ShardStates::pack(shard_states);
    const auto position = position_of(*checkpoint, model_.parameters().size());
    DataOrder(options_.seed).restore(position.data);  // throws where it makes no sense
    torch_optimizers_->check(position.optimizer_numbers);
    fill(*checkpoint, tensor_files());
    found = nlohmann::json(to_json(position)).dump();
  });
  if (error) std::rethrow_exception(error);
  const auto first_says = [&](std::span<const std::byte> bytes) {
    return gather_bytes(group_, bytes, waits("load()")).front();
  };
  const auto text = first_says(std::as_bytes(std::span(found)));
  const auto packed = first_says(states);
  if (text.empty()) return {};
  const auto* const begin = reinterpret_cast<const char*>(text.data());
  take_over(position_of(nlohmann::json::parse(begin, begin + text.size())));
  states_.take(ShardStates::unpack({&packed, 1}), mine_);
  buffers_->send_from_first_rank();
  parameters_->written();
  seed_between_steps();
  return steps_;
}

void TrainerState::take_over(const RunPosition& position) {
  log_.reset();
  steps_ = position.steps;
  dropped_in_a_row_ = position.dropped_in_a_row;
  data_.restore(position.data);
  scale_ = position.loss_scale;
  update_->updates() = position.updates;
  torch_optimizers_->restore(position.optimizer_numbers);
  if (averages_) averages_->restore(position.averaged_steps);
}

bool TrainerState::hashes(std::int64_t step) const {
  return options_.hash_every > 0 && step % options_.hash_every == 0;
}

/// Rank 0's. The others go on meanwhile: nothing can be written before it publishes its next step.
void TrainerState::log(const StepResult& result) {
  if (!log_) log_ = std::make_unique<StepLog>(host_files(), options_.log, facts_, result.step - 1);
  if (options_.metrics_every > 0 && result.step % options_.metrics_every == 0) {
    log_->metrics(result.step, {.applied = result.applied,
                                .dropped_because = result.dropped_because,
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
}

std::string TrainerState::state_sha256() const {
  Sha256 hash;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    const auto& entry = exchange_->plan().parameters()[p];
    const auto master_bytes = static_cast<std::size_t>(entry.spec.count) * size_of(entry.node_type);
    hash.update(model_.name(p).data(), model_.name(p).size());
    hash.update(shared_->value(p),
                static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype));
    hash.update(shared_->master(p), master_bytes);
    for (int k = 0; k < shared_->states(p); ++k) hash.update(shared_->state(p, k), master_bytes);
    hash.update(&update_->updates()[p], sizeof(std::int64_t));
  }
  for (const auto& [name, tensor] : model_.buffers()) {
    hash.update(name.data(), name.size());
    hash.update(tensor.data_ptr(), tensor.nbytes());
  }
  return hash.hex();
}

}  // namespace tutti
