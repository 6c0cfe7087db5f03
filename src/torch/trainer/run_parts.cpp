#include "torch/trainer/run_parts.h"

#include "torch/run/stored_tensors.h"

namespace tutti {
namespace {

constexpr const char* kNumbers = "optimizer_numbers";

ReplicaPosition replica_position_of(const nlohmann::json& state) {
  return {state.value("replica_updates", std::vector<std::vector<std::int64_t>>()),
          state.value("replica_moved", std::vector<std::uint8_t>()),
          state.value("replica_in_flight", std::vector<std::int64_t>()),
          state.value("replica_drops", std::vector<std::int64_t>())};
}

/// Names, and the bytes as they lie.
void add_to(Sha256& hash, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    hash.update(name.data(), name.size());
    hash.update(tensor.data_ptr(), tensor.nbytes());
  }
}

}  // namespace

// ---- per-replica parameters ----

void ReplicasRunPart::list(StateTensors& tensors) const {
  if (replicas_ == nullptr) return;
  append_views(tensors[StateFile::per_replica], replicas_->tensors());
  if (replicas_->position().moved.empty()) return;  // without an averaging policy
  append_views(tensors[StateFile::averaging], replicas_->kept_tensors());
}

void ReplicasRunPart::write(nlohmann::json& state) const {
  const auto position = replicas_ != nullptr ? replicas_->position() : ReplicaPosition();
  state["replica_updates"] = position.updates;
  state["replica_moved"] = position.moved;
  state["replica_drops"] = position.drops;
  if (!position.in_flight.empty()) state["replica_in_flight"] = position.in_flight;
}

void ReplicasRunPart::check(const nlohmann::json& state) const {
  const auto position = replica_position_of(state);
  if (replicas_ != nullptr) replicas_->check(position);
}

void ReplicasRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  if (replicas_ != nullptr) replicas_->restore(replica_position_of(state));
}

void ReplicasRunPart::hash(Sha256& hash) const {
  if (replicas_ == nullptr) return;
  add_to(hash, replicas_->tensors());
  add_to(hash, replicas_->kept_tensors());
  const auto position = replicas_->position();
  for (const auto& one : position.updates) {
    hash.update(one.data(), one.size() * sizeof(std::int64_t));
  }
  hash.update(position.moved.data(), position.moved.size());
  hash.update(position.in_flight.data(), position.in_flight.size() * sizeof(std::int64_t));
}

// ---- buffers ----

void BuffersRunPart::list(StateTensors& tensors) const {
  append_views(tensors[StateFile::buffers], buffers_.memory());
  const auto replicas = buffers_.replica_tensors();
  if (!replicas.empty()) append_views(tensors[StateFile::per_replica], replicas);
}

void BuffersRunPart::hash(Sha256& hash) const {
  add_to(hash, buffers_.tensors());
  add_to(hash, buffers_.replica_tensors());
}

// ---- states of shards ----

void ShardStatesRunPart::gather(const Gather& gather) {
  all_ = ShardStates::unpack(gather(states_.packed()));
}

void ShardStatesRunPart::list(StateTensors& tensors) const {
  append_views(tensors[StateFile::shard_states], all_);
}

std::vector<std::byte> ShardStatesRunPart::read(const Checkpoint& checkpoint) const {
  const auto all = load_tensors(checkpoint, StateFile::shard_states);
  ShardStates::check_names(all, shards_);
  return packed(all);
}

void ShardStatesRunPart::restore(const nlohmann::json& /*state*/, std::span<const std::byte> read) {
  states_.take(unpacked(read), mine_);
}

// ---- numbers of torch's optimizers ----

void OptimizerNumbersRunPart::gather(const Gather& gather) {
  all_ = nlohmann::json::object();
  const auto mine = optimizers_.numbers().dump();
  for (const auto& part : gather(std::as_bytes(std::span(mine)))) {
    all_.update(parse_json(part));
  }
}

void OptimizerNumbersRunPart::write(nlohmann::json& state) const { state[kNumbers] = all_; }

void OptimizerNumbersRunPart::check(const nlohmann::json& state) const {
  optimizers_.check(state.at(kNumbers));
}

void OptimizerNumbersRunPart::restore(const nlohmann::json& state,
                                      std::span<const std::byte> /*read*/) {
  optimizers_.restore(state.at(kNumbers));
}

}  // namespace tutti
