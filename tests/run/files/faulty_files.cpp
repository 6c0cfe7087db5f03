#include "run/files/faulty_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;

/// Writes and reads come in small pieces, as they may.
constexpr std::size_t kMaxBytes = 200;

std::uint64_t inode_of(int descriptor) {
  struct stat status {};
  ::fstat(descriptor, &status);
  return status.st_ino;
}

std::shared_ptr<FileDescriptor> open_folder(const fs::path& folder) {
  return std::make_shared<FileDescriptor>(
      ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

bool FaultyFiles::begin_effect(const fs::path& path, bool needs_room) {
  if (crashed_) throw Crash();
  ++effects_;
  const auto refuse = [&](int error) {
    throw IoError(error, fmt::format("cannot write {}: {}", path.string(), std::strerror(error)));
  };
  if (fault_ == Fault::refuse_once && effects_ == at_) refuse(EIO);
  if (fault_ == Fault::disk_full && effects_ >= at_ && needs_room) refuse(ENOSPC);
  crashed_ = effects_ == at_ && fault_ != Fault::disk_full;
  return crashed_;
}

void FaultyFiles::entry_made(const fs::path& path) {
  // By descriptor: the folder may be renamed meanwhile.
  const auto folder = open_folder(path.parent_path());
  pending_.push_back({inode_of(folder->get()), [this, folder, name = path.filename()] {
                        host_->remove_all(fs::path(fmt::format("/proc/self/fd/{}", folder->get())) /
                                          name);
                      }});
}

void FaultyFiles::cut_power() {
  for (; !pending_.empty(); pending_.pop_back()) pending_.back().undo();
}

std::vector<std::string> FaultyFiles::names_in(const fs::path& folder) const {
  return host_->names_in(folder);
}

bool FaultyFiles::exists(const fs::path& path) const { return host_->exists(path); }

std::size_t FaultyFiles::read_some(const File& file, std::uint64_t offset,
                                   std::span<std::byte> into) const {
  if (reads_left_ && (*reads_left_)-- <= 0)
    throw IoError(EIO, "cannot read " + file.path.string() + ": Input/output error");
  return host_->read_some(file, offset, into.first(std::min(into.size(), kMaxBytes)));
}

File FaultyFiles::create(const fs::path& path) {
  if (begin_effect(path, true)) throw Crash();
  File file = host_->create(path);
  entry_made(path);
  const auto copy = std::make_shared<FileDescriptor>(file.descriptor.duplicate());
  pending_.push_back({inode_of(copy->get()), [copy] {
                        if (::ftruncate(copy->get(), 10) != 0) throw std::runtime_error("truncate");
                      }});
  return file;
}

File FaultyFiles::append(const fs::path& path) {
  if (begin_effect(path, true)) throw Crash();
  return host_->append(path);
}

std::optional<File> FaultyFiles::lock(const fs::path& path) {
  if (begin_effect(path, true)) throw Crash();
  return host_->lock(path);
}

void FaultyFiles::cut(const File& file, std::uint64_t bytes) {
  if (begin_effect(file.path, false)) throw Crash();
  host_->cut(file, bytes);
}

std::size_t FaultyFiles::write_some(const File& file, std::span<const std::byte> bytes) {
  const bool crashes = begin_effect(file.path, true);
  bytes = bytes.first(std::min(bytes.size(), kMaxBytes));
  if (!crashes) return host_->write_some(file, bytes);
  host_->write_some(file, bytes.first(bytes.size() / 2));
  throw Crash();
}

void FaultyFiles::sync(const File& file) {
  if (begin_effect(file.path, true)) throw Crash();
  if (fault_ == Fault::crash_without_sync) return;
  std::erase_if(pending_, [inode = inode_of(file.descriptor.get())](const Pending& pending) {
    return pending.inode == inode;
  });
}

void FaultyFiles::create_folder(const fs::path& folder) {
  if (begin_effect(folder, true)) throw Crash();
  host_->create_folder(folder);
  entry_made(folder);
}

void FaultyFiles::sync_folder(const fs::path& folder) {
  if (begin_effect(folder, true)) throw Crash();
  if (fault_ == Fault::crash_without_sync) return;
  const auto opened = open_folder(folder);
  std::erase_if(pending_, [inode = inode_of(opened->get())](const Pending& pending) {
    return pending.inode == inode;
  });
}

void FaultyFiles::rename(const fs::path& from, const fs::path& to) {
  if (begin_effect(to, false)) throw Crash();
  if (fault_ == Fault::crash_when_hasty && to.extension() == ".old") {
    host_->remove_all(from);
    return;
  }
  host_->rename(from, to);
  const auto folder = open_folder(to.parent_path());
  pending_.push_back(
      {inode_of(folder->get()), [folder, from = from.filename(), to = to.filename()] {
         ::renameat(folder->get(), to.c_str(), folder->get(), from.c_str());
       }});
}

void FaultyFiles::remove_all(const fs::path& path) {
  if (!begin_effect(path, false)) return host_->remove_all(path);
  const auto inside = host_->names_in(path);
  if (!inside.empty()) host_->remove_all(path / inside.front());
  throw Crash();
}

}  // namespace tutti::test
