#pragma once

// A model's parameters as views of the one copy that all workers of a host share, or, on a device,
// as each worker's copies of it (device_parameters.h), and whether anybody but Tutti has written to
// them. When it ends, each worker's have memory of their own.
//
// What a closure (of a shard, of a batch of an evaluation) has changed is spoiled: its value
// depends on which worker computed what, so that nothing takes it over but values that are written
// anew.
//
// Threads: one. Failure: InvalidArgument names the parameter.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sync/step/step_part.h"
#include "sync/update/shared_model.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/device_parameters.h"
#include "tutti/group.h"

namespace tutti {

class SharedParameters : public StepPart {
 public:
  /// Rank 0's values move into `shared`, and every worker's tensors onto it: their addresses change
  /// here, and with show(), and never else; those of tensors on a device never. Collective.
  SharedParameters(const Group& group, const WrappedModel& model, const SharedModel& shared,
                   std::optional<std::chrono::milliseconds> deadline);
  /// Every tensor that still lies where it was put gets memory of its own, with the same values:
  /// what is done to the model from now on, each worker does for itself. Where there is no memory
  /// for that, an error is logged.
  ~SharedParameters() override;
  SharedParameters(const SharedParameters&) = delete;
  SharedParameters& operator=(const SharedParameters&) = delete;

  /// Throws if a parameter was written since the last written(), or is spoiled. WrappedModel knows
  /// whether it lies where it did.
  void require_untouched() const;
  /// Runs a closure. InvalidArgument where it has written to a parameter or moved it: `who` ("shard
  /// 3 of Trainer \"model\"") begins the text. What was written is spoiled then, also where the
  /// closure throws.
  void run_closure(const std::function<void()>& closure, const std::function<std::string()>& who);
  /// Throws if one is spoiled.
  void require_not_spoiled() const;
  /// Per parameter, whether it is spoiled on this worker.
  const std::vector<std::uint8_t>& spoiled() const { return spoiled_; }
  void spoil(std::vector<std::uint8_t> parameters) { spoiled_ = std::move(parameters); }
  /// Per parameter, how often torch has counted a write.
  std::vector<std::uint32_t> versions() const;
  /// Whether that parameter was.
  bool was_written(std::size_t parameter) const;
  /// All values may have changed, and are good: torch's checks for stale saved tensors get to know.
  void written();
  /// The program has written to this worker's tensors, and may have to all of them: the one copy is
  /// to have their values.
  void take_written();
  /// Where the tensors are copies of the one: the first that has other bytes.
  std::optional<std::size_t> differing() const {
    return device_ ? device_->differing() : std::nullopt;
  }
  void open(const StepFacts&) override { given_.assign(parameters_.size(), 0); }
  void publish() override {
    if (device_) device_->settle();
  }
  /// In the midst of a step's update: these values are final, and change this worker's tensors.
  void give_early(std::span<const std::uint32_t> parameters);
  void commit(StepFacts& step) override;
  void resume() override { written(); }
  /// The tensors of these parameters are views of that copy from now on: for torch they are the
  /// same tensors as before, with other values.
  void show(const SharedModel& copy, std::span<const std::uint32_t> parameters);

 private:
  void lay(std::size_t parameter, const SharedModel& copy);
  void take_back(std::size_t parameter);
  void bump(std::size_t parameter);
  void note_written();
  void give_all();
  std::vector<std::uint32_t> in_place() const;
  struct Seen {
    const void* place = nullptr;
    std::uint32_t version = 0;
    bool operator==(const Seen&) const = default;
  };
  Seen seen(std::size_t parameter) const;
  std::optional<std::size_t> spoil_changed();

  NamedTensors parameters_;
  std::unique_ptr<DeviceParameters> device_;  ///< null where the model is on the CPU
  std::vector<const void*> places_;           ///< where each was put last
  std::vector<std::int64_t> versions_;
  std::vector<std::uint8_t> given_;  ///< in the open step
  std::vector<bool> was_written_;    ///< before they showed other values
  std::vector<Seen> before_;         ///< the closure that runs
  std::vector<std::uint8_t> spoiled_;
};

}  // namespace tutti
