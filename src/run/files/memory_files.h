#pragma once

// Files in this process's memory, for what is written and read again by one process: nothing of
// them is seen by others, and all of them are gone with the last object that holds them.
//
// Threads: one at a time. Failure: IoError, as of files of the host.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace tutti {

class MemoryFiles final : public Files {
 public:
  std::vector<std::string> names_in(const std::filesystem::path& folder) const override;
  bool exists(const std::filesystem::path& path) const override { return entries_.contains(path); }
  File open(const std::filesystem::path& path) const override;
  std::uint64_t size(const File& file) const override { return host_->size(file); }
  std::size_t read_some(const File& file, std::uint64_t offset,
                        std::span<std::byte> into) const override {
    return host_->read_some(file, offset, into);
  }

  File create(const std::filesystem::path& path) override;
  File append(const std::filesystem::path& path) override;
  /// No other process has these files.
  std::optional<File> lock(const std::filesystem::path& path) override { return append(path); }
  std::size_t write_some(const File& file, std::span<const std::byte> bytes) override {
    return host_->write_some(file, bytes);
  }
  void cut(const File& file, std::uint64_t bytes) override { host_->cut(file, bytes); }
  /// Nothing of them survives a power cut.
  void sync(const File& /*file*/) override {}

  void create_folder(const std::filesystem::path& folder) override;
  void sync_folder(const std::filesystem::path& /*folder*/) override {}
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove_all(const std::filesystem::path& path) override;

 private:
  std::map<std::filesystem::path, FileDescriptor> entries_;  ///< without one: a folder
  std::shared_ptr<Files> host_ = host_files();  ///< reads and writes through the descriptors
};

}  // namespace tutti
