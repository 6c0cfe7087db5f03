#pragma once

// Files that fail on demand. Effects are counted from 1; at the one named, the disk refuses or the
// process "crashes": the effect is done by half, and nothing works from then on. A power cut takes
// away, besides, all that was not brought to disk: an enemy's file system, which keeps what was
// removed removed, and of the rest nothing that it need not keep.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"

namespace tutti::test {

/// Not a tutti::Error: nobody catches it.
struct Crash {};

enum class Fault {
  none,
  refuse_once,         ///< the one effect ends in "Input/output error"
  disk_full,           ///< from there on nothing more can be made or written
  crash,               ///< see above
  crash_without_sync,  ///< and sync did nothing until then
  crash_when_hasty     ///< and what was to go aside was removed
};

class FaultyFiles final : public Files {
 public:
  explicit FaultyFiles(Fault fault = Fault::none, int at = 0) : fault_(fault), at_(at) {}

  int effects() const { return effects_; }
  /// So many reads succeed from now on.
  void refuse_reads_after(int reads) { reads_left_ = reads; }
  /// Takes away what was not synced.
  void cut_power();

  std::vector<std::string> names_in(const std::filesystem::path& folder) const override;
  bool exists(const std::filesystem::path& path) const override;
  File open(const std::filesystem::path& path) const override { return host_->open(path); }
  std::uint64_t size(const File& file) const override { return host_->size(file); }
  std::size_t read_some(const File& file, std::uint64_t offset,
                        std::span<std::byte> into) const override;
  File create(const std::filesystem::path& path) override;
  File append(const std::filesystem::path& path) override;
  std::optional<File> lock(const std::filesystem::path& path) override;
  std::size_t write_some(const File& file, std::span<const std::byte> bytes) override;
  void cut(const File& file, std::uint64_t bytes) override;
  void sync(const File& file) override;
  void create_folder(const std::filesystem::path& folder) override;
  void sync_folder(const std::filesystem::path& folder) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove_all(const std::filesystem::path& path) override;

 private:
  /// True if the process crashes in this effect.
  bool begin_effect(const std::filesystem::path& path, bool needs_room);
  void entry_made(const std::filesystem::path& path);

  struct Pending {
    std::uint64_t inode;  ///< of the file or folder whose sync makes it last
    std::function<void()> undo;
  };
  std::shared_ptr<Files> host_ = host_files();
  Fault fault_;
  int at_;
  int effects_ = 0;
  mutable std::optional<int> reads_left_;
  bool crashed_ = false;
  std::vector<Pending> pending_;
};

}  // namespace tutti::test
