#pragma once

// Reads the safetensors format from an untrusted file. The whole layout is checked when the file is
// opened; the tensors' bytes go straight to the caller's memory.
//
// Threads: reading from several at once is fine. Failure: Corrupt that names the file, and the
// tensor where there is one; Unsupported for an unknown element type.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "run/files/safetensors_format.h"

namespace tutti {

/// The type, shape and place of one tensor.
struct TensorEntry {
  std::string name;
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape = {};  ///< empty for a scalar
  std::uint64_t offset = 0;              ///< in the file
  std::uint64_t bytes = 0;
};

class SafetensorsFile {
 public:
  SafetensorsFile(std::shared_ptr<const Files> files, const std::filesystem::path& path);

  /// The tensors, in the order of their bytes.
  const std::vector<TensorEntry>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// Null if there is none of that name.
  const TensorEntry* find(const std::string& name) const noexcept;
  /// Reads a tensor of this file. `into` has to have its size; type and shape are the caller's to
  /// compare.
  void read(const TensorEntry& tensor, std::span<std::byte> into) const;

 private:
  std::shared_ptr<const Files> files_;
  File file_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace tutti
