#pragma once

// The exchange of an audited step: one of its shards is computed once more by another worker, and
// all workers compare the results of both. Each worker has sections in shared memory, which it
// writes: the shard's saved state before others may read it, and the prints before the step is
// published.
//
// Threads: one. Failure: OutOfMemory where there is no memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/nodes/step_memory.h"
#include "sync/plan/assignment.h"

namespace tutti {

/// The shard that is computed once more, and the two workers that compute it, by rank in the group.
struct AuditPair {
  std::int64_t shard = 0;
  int owner = 0;    ///< has the shard
  int auditor = 0;  ///< computes it once more: the owner where there is no other worker
  friend bool operator==(const AuditPair&, const AuditPair&) = default;
};

/// `shards` are those of each worker, at least one of them not empty; `turn` is not negative. Each
/// worker that has shards is owner or auditor at least once in ⌈W/2⌉ turns that follow each other
/// from a multiple of W on, W being their number, and owner once in W; then it is the turn of its
/// next shard.
AuditPair audit_pair_of(std::int64_t turn, std::span<const ShardRange> shards);

/// The results of a shard, a hash for each. Two computations of one shard list the same parameters
/// in the same order, then their other results.
struct ShardPrint {
  struct Item {
    std::string what;  ///< `gradient of "0.weight"`
    std::uint64_t hash = 0;
    friend bool operator==(const Item&, const Item&) = default;
  };
  std::vector<Item> items;
  std::optional<double> loss;  ///< for the text of a difference
  friend bool operator==(const ShardPrint&, const ShardPrint&) = default;
};

/// Bytes for unpack_prints().
std::vector<std::byte> pack(std::span<const ShardPrint> prints);
std::vector<ShardPrint> unpack_prints(std::span<const std::byte> bytes);

/// The differences of two prints of one shard, the first one in full: `the gradient of "0.weight"
/// and 3 other things (loss 0.5 and 0.75)`. Empty where they are equal.
std::string differences(const ShardPrint& owners, const ShardPrint& auditors);

class AuditBoard {
 public:
  /// Collective.
  explicit AuditBoard(StepMemory& memory);

  /// Writes the saved state of the audited shard, for the auditor. Returns false where it is too
  /// large.
  bool hand_over(std::span<const std::byte> saved);
  /// The state that the worker handed over; absent where it was too large.
  std::optional<std::span<const std::byte>> handed_by(int rank) const;

  /// InvalidArgument where they are too many bytes.
  void publish(std::span<const ShardPrint> prints);
  std::vector<ShardPrint> of(int rank) const;

 private:
  struct Header {
    std::uint64_t saved = 0;
    std::uint64_t fits = 0;
    std::uint64_t prints = 0;  ///< bytes
  };
  struct Part {
    explicit Part(Sections& at);
    Section<Header> header;
    Section<std::byte> saved;
    Section<std::byte> prints;
  };

  WorkerParts<Part> parts_;
};

}  // namespace tutti
