#pragma once

// Writes the safetensors format (safetensors_format.h). Tensors of wide elements come first, so
// that each is aligned to its element size; among equals the order given is kept.
//
// Threads: one at a time. Failure: InvalidArgument that names the file and the tensor.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "run/files/hashed_file.h"
#include "run/files/safetensors_format.h"

namespace tutti {

/// Gets the next bytes of a tensor.
using TakeBytes = std::function<void(std::span<const std::byte>)>;

/// One tensor to be written; the bytes are borrowed and must stay as they are until then.
struct TensorToWrite {
  std::string name;  ///< UTF-8, unique in the file, not "__metadata__"
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape = {};  ///< empty for a scalar
  std::span<const std::byte> data = {};  ///< row-major, contiguous
  /// Instead of `data`, for a tensor that is nowhere as a whole: gives all of its bytes, in order.
  std::function<void(const TakeBytes&)> stream = {};
};

struct SafetensorsContent {
  std::string name;  ///< of the file
  std::vector<TensorToWrite> tensors = {};
  std::map<std::string, std::string> metadata = {};  ///< texts for the readers of the file
};

/// Lays the content out, then writes it. Keeps a reference to it.
class SafetensorsWriter {
 public:
  /// Checks everything that the reader checks.
  explicit SafetensorsWriter(const SafetensorsContent& content);
  /// Size of the file.
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Creates content.name in `folder`, to last; an existing file is refused.
  FileDigest write(Files& files, const std::filesystem::path& folder) const;

 private:
  const SafetensorsContent& content_;
  std::vector<const TensorToWrite*> order_;
  std::string header_;  // with its length before it
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti
