#include "run/files/hashed_file.h"

#include <algorithm>
#include <vector>

namespace tutti {
namespace {

/// Small enough to be still in the cache when it is written after it was hashed.
constexpr std::size_t kHashedPiece = std::size_t{256} << 10;

}  // namespace

HashedFile::HashedFile(Files& files, const std::filesystem::path& path)
    : files_(files), file_(files.create(path)) {}

void HashedFile::append(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kHashedPiece, bytes.size()));
    hash_.update(piece.data(), piece.size());
    write_all(files_, file_, piece);
    bytes = bytes.subspan(piece.size());
  }
}

FileDigest HashedFile::finish() {
  files_.sync(file_);
  file_.descriptor.reset();
  return {bytes_, hash_.hex()};
}

FileDigest digest_of(const Files& files, const File& file) {
  std::vector<std::byte> piece(kHashedPiece);
  Sha256 hash;
  std::uint64_t bytes = 0;
  while (const std::size_t read = files.read_some(file, bytes, piece)) {
    hash.update(piece.data(), read);
    bytes += read;
  }
  return {bytes, hash.hex()};
}

}  // namespace tutti
