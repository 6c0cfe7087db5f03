#pragma once

// All effects on named files behind one interface, as System is for the rest: tests fill the disk,
// cut writes short and stop a run between any two effects.
//
// Threads: any, as long as no other code works on the same files. Failure: IoError with what was
// tried, the path and the system's reason.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace tutti {

/// An open file and the name it was opened by.
struct File {
  std::filesystem::path path;
  FileDescriptor descriptor;
};

class Files {
 public:
  virtual ~Files() = default;

  /// Names in a folder without "." and "..", in no order; none if there is no such folder.
  virtual std::vector<std::string> names_in(const std::filesystem::path& folder) const = 0;
  virtual bool exists(const std::filesystem::path& path) const = 0;
  /// Opens a file for reading. Anything but a regular file is refused: a pipe would block.
  virtual File open(const std::filesystem::path& path) const = 0;
  /// Bytes.
  virtual std::uint64_t size(const File& file) const = 0;
  /// Reads up to into.size() bytes from `offset` and returns how many; 0 at the end of the file.
  virtual std::size_t read_some(const File& file, std::uint64_t offset,
                                std::span<std::byte> into) const = 0;

  /// A new empty file for writing; an existing one is refused.
  virtual File create(const std::filesystem::path& path) = 0;
  /// Opens a file for reading and for writing at its end, and makes a missing one. Anything but a
  /// regular file is refused.
  virtual File append(const std::filesystem::path& path) = 0;
  /// Takes a lock among processes, held until the file is closed or the process has ended; the file
  /// is made where it is missing, and stays. Empty while another process holds the lock. A file
  /// system without locks grants it to all.
  virtual std::optional<File> lock(const std::filesystem::path& path) = 0;
  /// Writes at the end of the file and returns how many bytes, at least 1 of a non-empty span.
  virtual std::size_t write_some(const File& file, std::span<const std::byte> bytes) = 0;
  /// Takes away all but the first `bytes`.
  virtual void cut(const File& file, std::uint64_t bytes) = 0;
  /// Returns when the file's bytes would survive a power cut.
  virtual void sync(const File& file) = 0;

  /// The parent must exist, the folder must not.
  virtual void create_folder(const std::filesystem::path& folder) = 0;
  /// Returns when the folder's entries would survive a power cut.
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
  /// Atomic. A file takes the place of another; a folder only that of an empty one.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Removes a file, or a folder with all in it, following no link. Not atomic.
  virtual void remove_all(const std::filesystem::path& path) = 0;
};

/// The real one.
std::shared_ptr<Files> host_files();

/// Writes all of `bytes` at the end of the file.
void write_all(Files& files, const File& file, std::span<const std::byte> bytes);
/// The same, or nothing of them: where it throws, what was written is taken back; where that fails
/// too, a warning says that it is left behind.
void append_whole(Files& files, const File& file, std::span<const std::byte> bytes);
/// Fills `into` from `offset` on; a file that ends before is Corrupt.
void read_all(const Files& files, const File& file, std::uint64_t offset,
              std::span<std::byte> into);
/// Makes the folder and those above it where they are missing, to last. Others may do the same at
/// the same time.
void ensure_folder(Files& files, const std::filesystem::path& folder);

}  // namespace tutti
