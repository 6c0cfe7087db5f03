#pragma once

// Checkpoints in a folder DIR: each a folder step-00000200/ of safetensors files beside a manifest
// (manifest.h). A checkpoint is written beside, brought to disk and renamed, so at every instant
// each complete checkpoint is either the whole old or the whole new one.
//
// Threads: one at a time. Processes: any number may read; of two that save at the same time, one is
// refused. Failure: Corrupt for a damaged checkpoint, IoError, Unsupported for one of another
// version, with file and reason; a save that fails leaves the checkpoints that were there, and no
// part of its own.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "run/files/checkpoint_folders.h"
#include "run/files/manifest.h"
#include "run/files/run_fingerprint.h"
#include "run/files/safetensors_reader.h"
#include "run/files/safetensors_writer.h"

namespace tutti {

/// All that one checkpoint holds. Tensors' bytes are borrowed until save returns.
struct CheckpointContent {
  std::int64_t step = 0;                             ///< steps done
  RunFingerprint facts = {};                         ///< must be equal to resume
  std::map<std::string, nlohmann::json> state = {};  ///< where the run stands
  std::vector<SafetensorsContent> files = {};        ///< names unique; see is_file_name
  std::string run = {};                              ///< Job::run_id() of the run that writes it
};

/// A checkpoint whose bytes were found to be as they were written.
class Checkpoint {
 public:
  Checkpoint(std::shared_ptr<const Files> files, std::filesystem::path folder, Manifest manifest);

  const std::filesystem::path& folder() const noexcept { return folder_; }
  const Manifest& manifest() const noexcept { return manifest_; }
  /// One of its files; InvalidArgument if it has none of that name.
  SafetensorsFile file(const std::string& name) const;

 private:
  std::shared_ptr<const Files> files_;
  std::filesystem::path folder_;
  Manifest manifest_;
};

/// True where `folder` is one checkpoint, and not a folder of them.
bool is_checkpoint_folder(const Files& files, const std::filesystem::path& folder);

/// Reads and verifies the one checkpoint that `folder` is: manifest, sizes, SHA-256. Corrupt if
/// there is none or anything differs.
Checkpoint open_checkpoint_folder(std::shared_ptr<const Files> files,
                                  const std::filesystem::path& folder);

/// The result of a search for a good checkpoint.
struct NewestGood {
  std::optional<Checkpoint> checkpoint;  ///< nothing if none was good
  std::vector<std::string> passed_over;  ///< why the newer ones were not taken, newest first
  int damaged = 0;  ///< of these: surely among the checkpoints that were asked for
};

struct CheckpointOptions {
  /// Complete checkpoints to keep, at least 1; all if absent.
  std::optional<int> keep = {};
};

class CheckpointStore {
 public:
  /// Touches nothing: DIR is made by the first save.
  CheckpointStore(std::shared_ptr<Files> files, const std::filesystem::path& dir,
                  const CheckpointOptions& options = {});

  /// Returns when the checkpoint would survive a power cut. Its run has saved last then. One of the
  /// same step is replaced. Then,
  /// of the checkpoints up to this step, all but the `keep` newest are removed; those of later
  /// steps, left by a run that went on from an earlier one, stay. What could not be removed is
  /// logged, and tried again by the next save.
  void save(const CheckpointContent& content);

  const std::filesystem::path& dir() const { return dir_; }
  /// Steps of the complete checkpoints, ascending; not verified.
  std::vector<std::int64_t> steps() const;
  std::optional<std::int64_t> newest() const;
  /// The newest that the run which has saved last has written: an older run's may be of later
  /// steps. Of all where there is none of it, or it is not known. Corrupt where a manifest on the
  /// way does not verify.
  std::optional<std::int64_t> newest_of_last_run() const;
  /// The newest that this run has written. Corrupt where a manifest on the way does not verify.
  std::optional<std::int64_t> newest_of(const std::string& run) const;

  /// Reads and verifies everything, as open_checkpoint_folder does.
  Checkpoint open(std::int64_t step) const;
  /// The newest that verifies, of all or of those that a run has written: a fallback to be asked
  /// for, never taken by itself.
  NewestGood newest_good(const std::optional<std::string>& run = {}) const;
  /// The newest that verifies of the run that has saved last; where none does, of all runs.
  NewestGood newest_good_of_last_run() const;

 private:
  void write(const CheckpointContent& content, const std::vector<SafetensorsWriter>& writers);
  void tidy(std::int64_t saved_step);

  std::shared_ptr<Files> files_;
  std::filesystem::path dir_;
  CheckpointFolders folders_;
  CheckpointOptions options_;
};

}  // namespace tutti
