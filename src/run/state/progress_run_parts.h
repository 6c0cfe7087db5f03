#pragma once

// How far a run has come, as parts of its state: steps, samples, loss scale, turns.
//
// Threads: one. Failure: RunPart's.

#include <cstdint>

#include "run/data/data_order.h"
#include "run/data/turns.h"
#include "run/numbers/loss_scaler.h"
#include "run/state/run_part.h"

namespace tutti {

class StepsRunPart : public RunPart {
 public:
  /// Keeps references.
  StepsRunPart(std::int64_t& steps, std::int64_t& dropped_in_a_row)
      : RunPart("steps"), steps_(steps), dropped_in_a_row_(dropped_in_a_row) {}
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  std::int64_t& steps_;
  std::int64_t& dropped_in_a_row_;
};

class DataOrderRunPart : public RunPart {
 public:
  /// Keeps a reference.
  explicit DataOrderRunPart(DataOrder& order) : RunPart("data order"), order_(order) {}
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  DataOrder& order_;
};

class LossScaleRunPart : public RunPart {
 public:
  /// Keeps a reference.
  explicit LossScaleRunPart(LossScaleState& scale) : RunPart("loss scale"), scale_(scale) {}
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  LossScaleState& scale_;
};

/// Not in the checkpoint where no step was about one of several models.
class TurnsRunPart : public RunPart {
 public:
  /// Keeps a reference.
  explicit TurnsRunPart(Turns& turns) : RunPart("turns"), turns_(turns) {}
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  Turns& turns_;
};

}  // namespace tutti
