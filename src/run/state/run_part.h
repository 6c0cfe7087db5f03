#pragma once

// A part of a run's state: all that a checkpoint, a load, `state_sha256()` and a step log do with
// it. RunState calls the parts in order, so that each piece of state is listed in one place.
//
// Threads: one. Failure: as each function says.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "kernels/hash.h"
#include "run/files/checkpoint_store.h"
#include "run/log/step_log.h"
#include "run/state/state_file.h"

namespace tutti {

/// The JSON that a worker of the run wrote.
inline nlohmann::json parse_json(std::span<const std::byte> text) {
  return nlohmann::json::parse(text_of(text));
}

class RunPart {
 public:
  explicit RunPart(std::string name) : name_(std::move(name)) {}
  virtual ~RunPart() = default;
  RunPart(const RunPart&) = delete;
  RunPart& operator=(const RunPart&) = delete;

  /// The name in errors: "loss scale".
  const std::string& name() const { return name_; }

  /// Whether all of it stays where it is when a Run is made anew (RunState::of_run()).
  virtual bool outlives_run() const { return false; }

  /// Whether hosts have state of this part that others do not have.
  virtual bool is_on_hosts() const { return false; }
  /// Brings all of it to all hosts, so that each can write it and hash it. Collective.
  virtual void bring() {}

  /// Returns the bytes of each worker, by rank. Collective.
  using Gather =
      std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> mine)>;
  /// Collects what each worker alone has, on all workers, before one of them writes.
  virtual void gather(const Gather& /*gather*/) {}
  /// Releases what gather() has collected, after the checkpoint is written.
  virtual void release() {}

  /// Lists the part's tensors.
  virtual void list(StateTensors& /*tensors*/) const {}
  /// Writes the part's numbers: members of the manifest's state.
  virtual void write(nlohmann::json& /*state*/) const {}

  /// InvalidArgument, or nlohmann::json::exception, where restore() could not take these numbers.
  virtual void check(const nlohmann::json& /*state*/) const {}
  /// Reads what all workers need besides the numbers and the tensors that are filled.
  /// InvalidArgument where it does not fit.
  virtual std::vector<std::byte> read(const Checkpoint& /*checkpoint*/) const { return {}; }
  /// Restores the part on all workers, once nothing was refused, from these numbers and the result
  /// of read().
  virtual void restore(const nlohmann::json& /*state*/, std::span<const std::byte> /*read*/) {}

  /// Hashes the part's state of one parameter, for the run's hash.
  virtual void hash_parameter(std::size_t /*parameter*/, Sha256& /*hash*/) const {}
  /// Hashes the rest of the part's state.
  virtual void hash(Sha256& /*hash*/) const {}
  /// What a step log has of tensors that are nowhere as a whole, and not in list().
  virtual NamedDigests digests() const { return {}; }

 private:
  std::string name_;
};

}  // namespace tutti
