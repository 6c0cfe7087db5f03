#pragma once

// Which samples a shard gets: the data set in an order of its own per epoch, cut into steps and
// shards. It is a pure function of seed and position, on any worker.
//
// An epoch holds the samples of a SampleOrder: every one once, unless it is drawn otherwise. A step
// takes shards · batch samples, in the order of the shards; the last step of an epoch takes what is
// left, so that its last shards may have fewer samples or none. A step never reaches into the next
// epoch.
//
// Copies share the epoch's samples (8 bytes each), so that a copy may look ahead cheaply.
//
// Threads: one per object. Failure: InvalidArgument, nothing changed.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/sample_order.h"

namespace tutti {

/// The samples that each shard of a step asks for.
struct DataRequest {
  std::int64_t dataset_size = 0;  ///< samples in the data set
  std::int64_t batch = 0;         ///< samples per shard
  friend bool operator==(const DataRequest&, const DataRequest&) = default;
};

/// The position of a run in its data: with the seed, all that a checkpoint has to keep.
struct DataPosition {
  std::int64_t epoch = 0;         ///< counted from 0
  std::int64_t taken = 0;         ///< samples of this epoch that earlier steps took
  std::int64_t dataset_size = 0;  ///< in this epoch; 0 while nothing is taken
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

class DataOrder {
 public:
  explicit DataOrder(std::uint64_t seed, SampleOrder order = {})
      : seed_(seed), order_(std::move(order)) {}

  /// Throws InvalidArgument where no step can be served so: a size or a batch below 1, or a data
  /// set of another size than in the earlier steps of this epoch. A new epoch may have another
  /// size.
  void check(const DataRequest& request) const;
  /// Samples of shard `shard` ≥ 0 of the next step. Checks the request.
  std::vector<std::int64_t> indices(const DataRequest& request, std::int64_t shard);
  /// Advances after a step of `shards` ≥ 1 shards with this request. Checks the request.
  void advance(const DataRequest& request, std::int64_t shards);

  const DataPosition& position() const { return position_; }
  /// Digest of the samples of the current epoch where the program's own function gave them; 0 where
  /// it was not asked for them yet.
  std::uint64_t own_digest() const {
    return epoch_ && epoch_->number == position_.epoch ? epoch_->own_digest : 0;
  }
  const SampleOrder& order() const { return order_; }
  /// Continues from there. InvalidArgument for what position() never returns.
  void restore(const DataPosition& position);

 private:
  struct Epoch {
    std::int64_t number;
    std::int64_t dataset_size;
    std::vector<std::int64_t> samples;
    std::uint64_t own_digest = 0;  ///< see own_digest()
  };
  const std::vector<std::int64_t>& samples(std::int64_t dataset_size);
  std::int64_t left(std::int64_t dataset_size);

  std::uint64_t seed_;
  SampleOrder order_;
  DataPosition position_;
  std::shared_ptr<const Epoch> epoch_;
};

/// The numbers 0 … size−1 in an order that seed and epoch decide: Fisher and Yates' shuffle (Knuth,
/// TAOCP 2, algorithm 3.4.2 P) with std::mt19937_64, whose output the standard fixes.
std::vector<std::int64_t> permutation_of(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

}  // namespace tutti
