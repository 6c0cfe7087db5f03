#pragma once

// A run's state: an ordered list of parts. What is saved, loaded, hashed and logged is what they
// list, and independent of the number of workers.
//
// Threads: one. Failure: where a checkpoint is refused, nothing has changed: Corrupt, IoError or
// Unsupported for one that cannot be read, InvalidArgument for one of another run. Mismatch where
// filling the tensors failed half-way.

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/files/checkpoint_store.h"
#include "run/log/step_log.h"
#include "run/state/run_part.h"

namespace tutti {

class RunState {
 public:
  /// Hashes, and the tensors of a file to which several parts add, have the parts in this order.
  template <class Part, class... Arguments>
  Part& add(Arguments&&... arguments) {
    auto part = std::make_unique<Part>(std::forward<Arguments>(arguments)...);
    auto& added = *part;
    add(added);
    own_.push_back(std::move(part));
    return added;
  }
  /// Keeps a reference.
  void add(RunPart& part) { parts_.push_back(&part); }

  /// What ends with a Run, and which the Run that takes its place has to get: without parts, and
  /// tensors of others, that outlive it. Refers to this object's parts.
  RunState of_run() const;

  /// Whether bring() must precede gather(), digests() and sha256().
  bool is_on_hosts() const;
  /// Brings what only some hosts have to all of them. Collective.
  void bring();
  /// Must precede write(). Collective.
  void gather(const RunPart::Gather& gather);
  /// Releases what gather() has collected, after write().
  void release();
  /// Writes a checkpoint of that step: facts and run are `content`'s, and its state is added to.
  void write(CheckpointStore& store, CheckpointContent content) const;

  /// Fills all tensors, once everything was found to fit; what all workers hand to restore().
  std::vector<std::byte> read(const Checkpoint& checkpoint) const;
  /// Restores all parts, on all workers.
  void restore(std::span<const std::byte> read);

  /// SHA-256, in 64 hexadecimal digits, of all parts' shares.
  std::string sha256(std::size_t parameters) const;
  /// SHA-256 of each tensor's bytes, row-major, by the names of a step log: "0.weight",
  /// "0.weight/exp_avg", "0.weight/master", "0.weight/average", "0.weight/residual.3",
  /// "logical.1/0.weight", "buffer:1.running_mean", "kept:best_loss".
  NamedDigests digests() const;

 private:
  StateTensors tensors() const;
  nlohmann::json numbers() const;

  std::vector<RunPart*> parts_;
  std::vector<std::unique_ptr<RunPart>> own_;  ///< some of them
  bool is_of_run_ = false;
};

/// Opens the newest checkpoint of the run `written_by`, where it is given, or of the run that has
/// saved last (CheckpointStore::newest_of_last_run()), or with `fall_back` the newest good one;
/// refuses one of other facts with the differences. Nothing where there is none.
std::optional<Checkpoint> open_checkpoint(const CheckpointStore& store, const RunFingerprint& facts,
                                          bool fall_back,
                                          const std::optional<std::string>& written_by);

}  // namespace tutti
