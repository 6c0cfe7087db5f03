#include "run/files/checkpoint_store.h"

#include <cerrno>
#include <exception>
#include <iterator>
#include <ranges>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error_kind.h"
#include "base/log.h"
#include "memory/memory_need.h"
#include "run/files/strict_json.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;

fs::path absolute_folder(const fs::path& dir) {
  if (dir.empty()) throw InvalidArgument("checkpoints need a folder; its name is empty");
  fs::path path = fs::absolute(dir);
  while (path.has_relative_path() && (!path.has_filename() || path.filename() == "."))
    path = path.parent_path();
  return path;
}

/// The manifest before any file is written.
Manifest manifest_of(const CheckpointContent& content) {
  return {.step = content.step, .facts = content.facts, .state = content.state, .run = content.run};
}

/// Everything that can be refused is, before the first effect.
std::vector<SafetensorsWriter> lay_out(const CheckpointContent& content) {
  if (content.step < 0) throw InvalidArgument(fmt::format("checkpoint of step {}", content.step));
  std::set<std::string> names;
  std::vector<SafetensorsWriter> writers;
  for (const SafetensorsContent& file : content.files) {
    if (!is_file_name(file.name))
      throw InvalidArgument(
          fmt::format("{} is no name for a file of a checkpoint", shown(file.name)));
    if (!names.insert(file.name).second)
      throw InvalidArgument(fmt::format("a checkpoint with two files {}", shown(file.name)));
    writers.emplace_back(file);
  }
  to_text(manifest_of(content));
  return writers;
}

void write_manifest(Files& files, const fs::path& folder, const Manifest& manifest) {
  HashedFile file(files, folder / kManifestName);
  file.append(to_text(manifest));
  file.finish();
}

/// A checkpoint that lacks one of its files is damaged.
File open_part(const Files& files, const fs::path& path) {
  try {
    return files.open(path);
  } catch (const IoError& error) {
    if (error.code() == ENOENT) throw Corrupt(error.what());
    throw;
  }
}

Manifest read_manifest(const Files& files, const fs::path& folder) {
  const File file = open_part(files, folder / kManifestName);
  const std::uint64_t size = files.size(file);
  if (size > kMaxManifestBytes)
    throw Corrupt(fmt::format("{} has {}; at most {} are taken", file.path.string(),
                              format_bytes(size), format_bytes(kMaxManifestBytes)));
  std::string text(size, '\0');
  read_all(files, file, 0, std::as_writable_bytes(std::span(text)));
  return parse_manifest(text, file.path.string());
}

void verify(const Files& files, const fs::path& path, const FileDigest& expected) {
  const File file = open_part(files, path);
  const std::uint64_t size = files.size(file);
  if (size != expected.bytes)
    throw Corrupt(
        fmt::format("{} has {} bytes; the manifest names {}", path.string(), size, expected.bytes));
  const FileDigest found = digest_of(files, file);
  if (found != expected)
    throw Corrupt(fmt::format("{} was altered: its SHA-256 is {}, the manifest names {}",
                              path.string(), found.sha256, expected.sha256));
}

Checkpoint verified(std::shared_ptr<const Files> files, const fs::path& folder, Manifest manifest) {
  for (const auto& [name, digest] : manifest.files) verify(*files, folder / name, digest);
  return {std::move(files), folder, std::move(manifest)};
}

Manifest manifest_at(const Files& files, const fs::path& folder, std::int64_t step) {
  Manifest manifest = read_manifest(files, folder);
  if (manifest.step != step)
    throw Corrupt(fmt::format("{} holds a checkpoint of step {}, not of step {}", folder.string(),
                              manifest.step, step));
  return manifest;
}

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<const Files> files, fs::path folder, Manifest manifest)
    : files_(std::move(files)), folder_(std::move(folder)), manifest_(std::move(manifest)) {}

SafetensorsFile Checkpoint::file(const std::string& name) const {
  if (!manifest_.files.contains(name))
    throw InvalidArgument(fmt::format("{} has no file {}", folder_.string(), shown(name)));
  return {files_, folder_ / name};
}

bool is_checkpoint_folder(const Files& files, const fs::path& folder) {
  return files.exists(folder / kManifestName);
}

Checkpoint open_checkpoint_folder(std::shared_ptr<const Files> files, const fs::path& folder) {
  Manifest manifest = read_manifest(*files, folder);
  return verified(std::move(files), folder, std::move(manifest));
}

CheckpointStore::CheckpointStore(std::shared_ptr<Files> files, const fs::path& dir,
                                 const CheckpointOptions& options)
    : files_(std::move(files)),
      dir_(absolute_folder(dir)),
      folders_(*files_, dir_),
      options_(options) {
  if (options_.keep && *options_.keep < 1)
    throw InvalidArgument(fmt::format("checkpoints to keep: {}; at least 1 stays", *options_.keep));
}

void CheckpointStore::save(const CheckpointContent& content) {
  const std::vector<SafetensorsWriter> writers = lay_out(content);
  std::uint64_t bytes = 0;
  for (const SafetensorsWriter& writer : writers) bytes += writer.bytes();
  std::optional<File> lock;
  try {
    lock = folders_.lock();
    write(content, writers);
  } catch (const Error& error) {
    std::rethrow_exception(make_error(
        error_kind(), fmt::format("the checkpoint of step {} ({}) cannot be saved: {}. Those in {} "
                                  "are as they were",
                                  content.step, format_bytes(bytes), error.what(), dir_.string())));
  }
  tidy(content.step);
}

void CheckpointStore::write(const CheckpointContent& content,
                            const std::vector<SafetensorsWriter>& writers) {
  folders_.settle();
  const fs::path part = folders_.begin(content.step);
  try {
    Manifest manifest = manifest_of(content);
    for (std::size_t i = 0; i < writers.size(); ++i)
      manifest.files[content.files[i].name] = writers[i].write(*files_, part);
    write_manifest(*files_, part, manifest);
    folders_.note_run(content.run, part);
    folders_.publish(content.step, part);
  } catch (...) {
    try {
      files_->remove_all(part);
    } catch (const Error& error) {
      log().warn("left behind by a checkpoint that failed: {}", error.what());
    }
    throw;
  }
}

void CheckpointStore::tidy(std::int64_t saved_step) {
  try {
    folders_.settle();
    if (!options_.keep) return;
    auto complete = folders_.complete();
    complete.erase(complete.upper_bound(saved_step), complete.end());
    for (int kept = 0; kept < *options_.keep && !complete.empty(); ++kept)
      complete.erase(std::prev(complete.end()));
    folders_.remove(complete);
  } catch (const Error& error) {
    log().warn("an older checkpoint is still there: {}", error.what());
  }
}

std::vector<std::int64_t> CheckpointStore::steps() const {
  std::vector<std::int64_t> steps;
  for (const auto& [step, folder] : folders_.complete()) steps.push_back(step);
  return steps;
}

std::optional<std::int64_t> CheckpointStore::newest() const {
  const auto complete = folders_.complete();
  if (complete.empty()) return std::nullopt;
  return complete.rbegin()->first;
}

std::optional<std::int64_t> CheckpointStore::newest_of_last_run() const {
  const auto run = folders_.noted_run();
  const auto own = run ? newest_of(*run) : std::nullopt;
  return own ? own : newest();
}

NewestGood CheckpointStore::newest_good_of_last_run() const {
  const auto run = folders_.noted_run();
  if (!run) return newest_good();
  auto found = newest_good(run);
  return found.checkpoint ? std::move(found) : newest_good();
}

std::optional<std::int64_t> CheckpointStore::newest_of(const std::string& run) const {
  const auto complete = folders_.complete();
  for (const auto& [step, folder] : std::views::reverse(complete)) {
    if (manifest_at(*files_, folder, step).run == run) return step;
  }
  return std::nullopt;
}

Checkpoint CheckpointStore::open(std::int64_t step) const {
  const auto complete = folders_.complete();
  const auto at = complete.find(step);
  if (at == complete.end())
    throw InvalidArgument(fmt::format("{} has no checkpoint of step {}", dir_.string(), step));
  return verified(files_, at->second, manifest_at(*files_, at->second, step));
}

NewestGood CheckpointStore::newest_good(const std::optional<std::string>& run) const {
  NewestGood found;
  const auto complete = folders_.complete();
  for (auto at = complete.rbegin(); at != complete.rend() && !found.checkpoint; ++at) {
    bool is_asked_for = !run;
    try {
      Manifest manifest = manifest_at(*files_, at->second, at->first);
      if (run && manifest.run != *run) continue;
      is_asked_for = true;
      found.checkpoint = verified(files_, at->second, std::move(manifest));
    } catch (const Error& error) {
      found.passed_over.emplace_back(error.what());
      found.damaged += is_asked_for ? 1 : 0;
    }
  }
  return found;
}

}  // namespace tutti
