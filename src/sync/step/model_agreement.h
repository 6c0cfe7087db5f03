#pragma once

// Whether the workers of an exchange have the same model: digests of parameters and buffers, modes
// of modules, and whose buffers count at the end of a step.
//
// Threads: that of the exchange. Failure: Mismatch, the same on every worker.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/nodes/node_store.h"
#include "sync/step/digest_check.h"
#include "sync/step/exchange_options.h"
#include "sync/step/step_protocol.h"

namespace tutti {

/// Where that worker writes its value of a buffer, before it publishes the step.
inline std::byte* published_buffer(const NodeStore& nodes, int rank, std::size_t buffer) {
  return nodes.arena().block(rank) + nodes.plan().buffers()[buffer].offset;
}

class ModelAgreement {
 public:
  /// Keeps references.
  ModelAgreement(StepProtocol& protocol, NodeStore& nodes, const ExchangeOptions& options);

  /// The open step compares digests, so that `modes` of its ModelMemory are looked at.
  bool looks_closely() const { return digests_.due(protocol_.step()); }
  /// Parameters are compared in some steps, and at the end.
  bool compares() const { return digests_.compares(); }
  /// The open step compares digests of parameters.
  bool reads_parameters() const {
    return looks_closely() || (compares() && protocol_.own_header().drained != 0);
  }
  /// Steps copy one worker's buffers to the others.
  bool reads_buffers() const { return options_.sync_buffers && protocol_.group().size() > 1; }
  /// Writes what others compare, and buffers where they are synchronised and may count.
  void publish(const ModelMemory& model);
  /// Compares, once all have published, what is due.
  void compare() const;
  /// The rank in the group whose buffers count in the published step: the lowest that had a leaf of
  /// a weight above 0, because a worker without data has old buffers, or those of no rows; where
  /// none had, the lowest that had a leaf; 0 if none had.
  int buffer_source() const;
  /// Replaces this worker's buffers by the source's, inside complete(), where buffers are
  /// synchronised and differ.
  void take_buffers(const ModelMemory& model);
  /// Per buffer, 1 for those to which take_buffers() has given other bytes.
  std::span<const std::uint8_t> changed_buffers() const { return changed_buffers_; }
  /// Notes, inside complete(), that the model's buffers are equal on all workers.
  void note_buffers(const ModelMemory& model);
  /// Between steps, when this worker takes part in no further one: where the model differs from
  /// those of workers that have parted before, one of them gets a text that tells how.
  std::optional<std::string> part(const ModelMemory& model) noexcept;

 private:
  bool has_leaf(int rank) const;
  bool has_weight(int rank) const;
  bool may_be_source() const;
  bool all_drained() const;
  void compare_modes() const;

  StepProtocol& protocol_;
  NodeStore& nodes_;
  const ExchangeOptions& options_;
  DigestCheck digests_;
  std::vector<std::uint8_t> changed_buffers_;
};

}  // namespace tutti
