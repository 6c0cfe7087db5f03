#pragma once

// The options of a step exchange.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sync/nodes/node_store.h"

namespace tutti {

struct ExchangeOptions {
  std::string name = {};  ///< in errors: what is trained
  Divisor divisor = Divisor::weights;
  std::int64_t fusion = std::int64_t{25} << 18;  ///< elements: of a bucket (fusion.h)
  std::int64_t first_fusion = std::int64_t{1} << 18;
  /// Every worker's nodes end where one of these leaves begins: ascending.
  std::vector<std::int64_t> node_boundaries = {};
  /// So many neighbouring ranks compute the same shards together, each with a part of the
  /// parameters, and call open_shards() alike.
  int workers_per_shard = 1;
  /// Per parameter, the rank in the group of the one worker that updates it; −1: all share it.
  /// Empty: all share all.
  std::vector<int> owners = {};
  /// The gradients become messages first: nothing is folded before arrive().
  bool coded = false;
  /// One worker's buffers replace those of all at the end of each step: see ModelAgreement.
  bool sync_buffers = true;
  StaysHere stays = {};     ///< of compressed and per-replica gradients
  ForTiles for_tiles = {};  ///< of folds: null, the calling thread alone
  /// Compare digests of parameters and buffers, and modes of modules, in the first steps and in
  /// every n-th; 0 never.
  std::int64_t desync_check_every = 100;
  /// Number of modules of the model, and the name of the k-th in errors.
  std::size_t modules = 0;
  std::function<std::string(std::size_t k)> module_name = {};
  /// LeafIntake::magnitude() is known.
  bool reports_magnitude = false;
  std::optional<std::chrono::milliseconds> deadline = {};
  /// Ends the text of an error about workers that do not come: it names what their program may have
  /// missed.
  std::string hint = {};
  /// The same where that worker has ended its part.
  std::string end_hint = {};
  /// Ends the text of a Timeout or Mismatch in a step in which this worker has no gradient.
  std::string hint_without_gradient = {};
  /// complete()'s work cannot be undone: a worker that fails meanwhile ends the exchange.
  bool updates_in_place = false;
};

}  // namespace tutti
