#include "run/files/checkpoint_folders.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/number.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";
constexpr const char* kRun = ".run";
constexpr std::uint64_t kMaxRunBytes = 4096;
constexpr const char* kOld = ".old";
constexpr const char* kGone = ".gone";
constexpr std::string_view kPart = ".part-";

/// A name of ours: the step, hidden or not, and what follows the step.
struct OurName {
  std::int64_t step = 0;
  bool hidden = false;
  std::string_view suffix;
};

std::optional<OurName> parse(std::string_view name) {
  OurName ours;
  ours.hidden = name.starts_with('.');
  const std::string_view body = name.substr(ours.hidden ? 1 : 0);
  ours.suffix = body.substr(std::min(body.size(), std::size_t{5}));
  const auto step = take_number<std::int64_t>(ours.suffix);
  if (!step || *step < 0) return std::nullopt;
  ours.step = *step;
  // Only the canonical form of the number counts, so that a step has one folder.
  if (body.substr(0, body.size() - ours.suffix.size()) != name_of_step(ours.step))
    return std::nullopt;
  return ours;
}

}  // namespace

std::string name_of_step(std::int64_t step) { return fmt::format("step-{:08}", step); }

CheckpointFolders::CheckpointFolders(Files& files, fs::path dir)
    : files_(files), dir_(std::move(dir)) {}

fs::path CheckpointFolders::aside(std::int64_t step, const char* suffix) const {
  return dir_ / fmt::format(".{}{}", name_of_step(step), suffix);
}

std::map<std::int64_t, fs::path> CheckpointFolders::complete() const {
  std::map<std::int64_t, fs::path> found;
  for (const std::string& name : files_.names_in(dir_)) {
    const auto ours = parse(name);
    if (!ours) continue;
    if (!ours->hidden && ours->suffix.empty()) found.insert_or_assign(ours->step, dir_ / name);
    if (ours->hidden && ours->suffix == kOld) found.try_emplace(ours->step, dir_ / name);
  }
  return found;
}

File CheckpointFolders::lock() {
  ensure_folder(files_, dir_);
  auto lock = files_.lock(dir_ / kLock);
  if (!lock) {
    throw InvalidArgument(
        fmt::format("another run saves there ({} is locked); give each run a folder of "
                    "its own",
                    (dir_ / kLock).string()));
  }
  return std::move(*lock);
}

std::optional<std::string> CheckpointFolders::noted_run() const {
  if (!files_.exists(dir_ / kRun)) return std::nullopt;
  const File file = files_.open(dir_ / kRun);
  const auto size = files_.size(file);
  if (size > kMaxRunBytes) {
    throw Corrupt(fmt::format("{} has {} bytes: it names a run", file.path.string(), size));
  }
  std::string run(size, '\0');
  read_all(files_, file, 0, std::as_writable_bytes(std::span(run)));
  return run;
}

void CheckpointFolders::note_run(const std::string& run, const fs::path& part) {
  if (noted_run() == run) return;
  const File file = files_.create(part / kRun);
  write_all(files_, file, std::as_bytes(std::span(run)));
  files_.sync(file);
  files_.rename(part / kRun, dir_ / kRun);
  files_.sync_folder(dir_);
}

void CheckpointFolders::settle() {
  const auto found = complete();
  std::map<std::int64_t, fs::path> replaced;
  for (const std::string& name : files_.names_in(dir_)) {
    const auto ours = parse(name);
    if (!ours || !ours->hidden) continue;
    if (ours->suffix == kGone || ours->suffix.starts_with(kPart)) {
      files_.remove_all(dir_ / name);
    } else if (ours->suffix == kOld) {
      if (found.at(ours->step) != dir_ / name) {
        replaced[ours->step] = dir_ / name;
      } else {
        files_.rename(dir_ / name, dir_ / name_of_step(ours->step));
        files_.sync_folder(dir_);
      }
    }
  }
  remove(replaced);
}

fs::path CheckpointFolders::begin(std::int64_t step) {
  auto part = aside(step, fmt::format("{}{}", kPart, ::getpid()).c_str());
  files_.create_folder(part);
  return part;
}

void CheckpointFolders::publish(std::int64_t step, const fs::path& part) {
  files_.sync_folder(part);
  const fs::path place = dir_ / name_of_step(step);
  const fs::path old = aside(step, kOld);
  const bool replaces = files_.exists(place);
  if (replaces) files_.rename(place, old);
  try {
    files_.rename(part, place);
    files_.sync_folder(dir_);
  } catch (const Error&) {
    if (files_.exists(place)) files_.rename(place, part);
    if (replaces) files_.rename(old, place);
    throw;
  }
}

void CheckpointFolders::remove(const std::map<std::int64_t, fs::path>& checkpoints) {
  if (checkpoints.empty()) return;
  for (const auto& [step, path] : checkpoints) files_.rename(path, aside(step, kGone));
  // The renames are durable before anything is removed: a power cut must not restore the old name
  // of an incomplete folder.
  files_.sync_folder(dir_);
  for (const auto& [step, path] : checkpoints) files_.remove_all(aside(step, kGone));
}

}  // namespace tutti
