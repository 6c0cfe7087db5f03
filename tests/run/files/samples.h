#pragma once

// Tensors and checkpoints with bytes of their own, told apart by a seed.

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "run/files/checkpoint_store.h"

namespace tutti::test {

/// A content and the bytes that it borrows.
class Samples {
 public:
  explicit Samples(unsigned seed) : state_(seed) {}
  /// Random bytes; booleans are 0 or 1.
  TensorToWrite tensor(std::string name, StoredType type, std::vector<std::int64_t> shape);

 private:
  std::uint32_t state_;
  std::list<std::vector<std::byte>> bytes_;
};

/// One checkpoint of two small files.
struct SampleCheckpoint {
  SampleCheckpoint(std::int64_t step, unsigned seed);
  Samples samples;
  CheckpointContent content;
};

using TensorBytes = std::map<std::string, std::vector<std::byte>>;
/// "file/tensor" and its bytes.
TensorBytes bytes_of(const CheckpointContent& content);
TensorBytes bytes_of(const Checkpoint& checkpoint);

}  // namespace tutti::test
