#pragma once

// By what two runs of a segment are compared: what their results are, and their bytes.
//
// Bytes on the CPU are hashed at once. Those on a device are hashed there, by integer operations:
// the sum of a hash of each element and its place, modulo 2^64, depends on no order. Nothing waits
// for them in forward; in backward one answer for all results comes to the host.
//
// Threads: any. Failure: what a device says.

#include <c10/core/Event.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tutti/tensors.h"

namespace tutti {

/// What a result has to be again.
struct Fingerprint {
  bool is_computed = false;                ///< with a gradient that goes back through the segment
  std::size_t place = 0;                   ///< of the first result that is this very tensor
  std::optional<c10::Device> device = {};  ///< none: the result is undefined
  torch::ScalarType type = torch::kFloat;
  std::vector<std::int64_t> sizes = {};
  std::uint64_t bytes = 0;  ///< digest of what is on the CPU
  bool operator==(const Fingerprint&) const = default;

  bool is_on_device() const { return device && !device->is_cpu(); }
};

/// The first tensor of the list that is this very one; the list's size where none is.
std::size_t place_of(const torch::Tensor& tensor, const TensorList& all);

std::vector<Fingerprint> fingerprints_of(const TensorList& results, const TensorList& inputs);
/// Digests of the results that are on a device, one for all of them, each once and in order: int64
/// on it; undefined where there are none. Queued on its current stream. Takes the memory of a
/// result that is not contiguous, and at most half that of one that is, or 4 MB.
torch::Tensor digests_on_device(const TensorList& results, const std::vector<Fingerprint>& prints);

/// The digests of two runs, whose fingerprints are the same.
class DigestComparison {
 public:
  /// Queues it. Both may be undefined.
  DigestComparison(const torch::Tensor& first, const torch::Tensor& again);
  /// Waits for the device: which of the digests differ first.
  std::optional<std::size_t> difference();

 private:
  torch::Tensor differs_;  ///< of the host
  std::optional<c10::Event> came_;
};

}  // namespace tutti
