#pragma once

// A file and the SHA-256 of its bytes, taken while they are written, so that memory is read once.
//
// Threads: one at a time. Failure: that of Files.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "kernels/hash.h"

namespace tutti {

struct FileDigest {
  std::uint64_t bytes = 0;
  std::string sha256;  ///< 64 lower-case hexadecimal digits
  bool operator==(const FileDigest&) const = default;
};

class HashedFile {
 public:
  /// Creates the file; an existing one is refused.
  HashedFile(Files& files, const std::filesystem::path& path);
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  /// Returns when all would survive a power cut. Ends the writing.
  FileDigest finish();

 private:
  Files& files_;
  File file_;
  Sha256 hash_;
  std::uint64_t bytes_ = 0;
};

/// Reads the whole file.
FileDigest digest_of(const Files& files, const File& file);

}  // namespace tutti
