#include "run/files/memory_files.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* doing, const fs::path& path, int error) {
  throw IoError(error,
                fmt::format("cannot {} {} in memory: {}", doing, path.string(), error_text(error)));
}

/// Whether `path` is `folder`, or lies in it.
bool is_in(const fs::path& folder, const fs::path& path) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

}  // namespace

std::vector<std::string> MemoryFiles::names_in(const fs::path& folder) const {
  std::vector<std::string> names;
  for (const auto& [path, file] : entries_) {
    if (path != folder && path.parent_path() == folder) names.push_back(path.filename().string());
  }
  return names;
}

File MemoryFiles::open(const fs::path& path) const {
  const auto found = entries_.find(path);
  if (found == entries_.end() || !found->second) fail("open", path, ENOENT);
  return {path, found->second.duplicate()};
}

File MemoryFiles::create(const fs::path& path) {
  if (exists(path)) fail("create", path, EEXIST);
  FileDescriptor file(::memfd_create("tutti-file", MFD_CLOEXEC));
  if (!file) fail("create", path, errno);
  entries_.emplace(path, std::move(file));
  return open(path);
}

File MemoryFiles::append(const fs::path& path) { return exists(path) ? open(path) : create(path); }

void MemoryFiles::create_folder(const fs::path& folder) {
  if (!entries_.emplace(folder, FileDescriptor()).second) fail("make folder", folder, EEXIST);
}

void MemoryFiles::rename(const fs::path& from, const fs::path& to) {
  if (!exists(from)) fail("rename", from, ENOENT);
  remove_all(to);
  decltype(entries_) moved;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto here = entry++;
    if (!is_in(from, here->first)) continue;
    auto node = entries_.extract(here);
    auto path = to;
    for (auto part = std::next(node.key().begin(), std::distance(from.begin(), from.end()));
         part != node.key().end(); ++part) {
      path /= *part;
    }
    node.key() = std::move(path);
    moved.insert(std::move(node));
  }
  entries_.merge(moved);
}

void MemoryFiles::remove_all(const fs::path& path) {
  std::erase_if(entries_, [&](const auto& entry) { return is_in(path, entry.first); });
}

}  // namespace tutti
