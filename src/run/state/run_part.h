#pragma once

// A part of a run's state: all that a checkpoint, a load, `state_sha256()` and a step log have to
// do with it. RunState calls the parts in order, so a piece of state is said once: here.
//
// Threads: one. Failure: as each function says.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/hash.h"
#include "run/checkpoint_store.h"
#include "run/state/state_file.h"

namespace tutti {

/// The JSON that a worker of the run wrote.
inline nlohmann::json parse_json(std::span<const std::byte> text) {
  const auto* const begin = reinterpret_cast<const char*>(text.data());
  return nlohmann::json::parse(begin, begin + text.size());
}

class RunPart {
 public:
  explicit RunPart(std::string name) : name_(std::move(name)) {}
  virtual ~RunPart() = default;
  RunPart(const RunPart&) = delete;
  RunPart& operator=(const RunPart&) = delete;

  /// In errors: "loss scale".
  const std::string& name() const { return name_; }

  /// What each worker has to say, by rank. Collective.
  using Gather =
      std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> mine)>;
  /// On all workers, before one of them writes: what each of them alone has is brought together.
  virtual void gather(const Gather& /*gather*/) {}
  /// Forgets it: the checkpoint is written.
  virtual void release() {}

  /// Its tensors.
  virtual void list(StateTensors& /*tensors*/) const {}
  /// Its numbers: members of the manifest's state.
  virtual void write(nlohmann::json& /*state*/) const {}

  /// InvalidArgument, or nlohmann::json::exception, where restore() could not take these numbers.
  virtual void check(const nlohmann::json& /*state*/) const {}
  /// What all workers need besides the numbers and the tensors that are filled. InvalidArgument
  /// where it does not fit.
  virtual std::vector<std::byte> read(const Checkpoint& /*checkpoint*/) const { return {}; }
  /// On all workers, once nothing was refused: these numbers, and what read() gave.
  virtual void restore(const nlohmann::json& /*state*/, std::span<const std::byte> /*read*/) {}

  /// Its share of the run's hash that is kept per parameter: hashed parameter by parameter.
  virtual void hash_parameter(std::size_t /*parameter*/, Sha256& /*hash*/) const {}
  /// The rest of its share.
  virtual void hash(Sha256& /*hash*/) const {}

 private:
  std::string name_;
};

}  // namespace tutti
