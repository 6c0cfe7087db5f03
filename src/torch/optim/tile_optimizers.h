#pragma once

// The torch optimizers of the tiles that this worker owns, and what they keep besides tensors.
//
// Threads: one. Failure: InvalidArgument for a factory that changed its mind; update(): Mismatch.

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sync/update/shared_model.h"
#include "sync/update/tile_updates.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

class TorchRule;

class TileOptimizers : public TileUpdates {
 public:
  /// `rules[p]` of parameter p; null: not one of these. Keeps references.
  TileOptimizers(const Plan& plan, const SharedModel& model,
                 std::vector<std::shared_ptr<const TorchRule>> rules, int rank, int size);

  void update(const ElementRange& tile, void* gradient, double rate_factor) override;

  /// Numbers of state by the parameter's name, of those parameters of which this worker owns tiles
  /// that have state. All tiles of a parameter have the same.
  nlohmann::json numbers() const;
  /// InvalidArgument unless they are what the numbers() of all workers can be together.
  void check(const nlohmann::json& numbers) const;
  /// All tiles have these numbers now, and the tensors that lie in the shared memory.
  void restore(const nlohmann::json& numbers);

 private:
  struct Tile {
    torch::Tensor values;  ///< of the master copy
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    std::vector<double> rates;  ///< of each group, where the schedule's factor is 1
    bool moved = false;         ///< its state lies in the shared memory
  };
  using Key = std::pair<std::uint32_t, std::int64_t>;  // parameter, first element

  Tile make(const ElementRange& tile) const;
  void move_state(const Key& key, Tile& tile) const;
  NamedTensors shared_state(const Key& key, const Tile& tile) const;
  torch::Tensor view(std::byte* base, std::uint32_t parameter, std::int64_t begin,
                     std::int64_t count) const;

  const Plan& plan_;
  const SharedModel& model_;
  std::vector<std::shared_ptr<const TorchRule>> rules_;
  std::map<Key, Tile> tiles_;
};

}  // namespace tutti
