#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* doing, const fs::path& path, int error = errno) {
  throw IoError(error, fmt::format("cannot {} {}: {}", doing, path.string(), error_text(error)));
}

void require_regular(const File& file) {
  if (!file.descriptor) fail("open", file.path);
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0) fail("look at", file.path);
  if (!S_ISREG(status.st_mode))
    throw IoError(0, fmt::format("cannot open {}: not a regular file", file.path.string()));
}

/// Calls until no signal interrupts it.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class HostFiles final : public Files {
 public:
  std::vector<std::string> names_in(const fs::path& folder) const override {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator at(folder, error);
    if (error == std::errc::no_such_file_or_directory) return names;
    for (; !error && at != fs::directory_iterator(); at.increment(error))
      names.push_back(at->path().filename().string());
    if (error) fail("list", folder, error.value());
    return names;
  }

  bool exists(const fs::path& path) const override {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) fail("look at", path);
    return false;
  }

  File open(const fs::path& path) const override {
    File file{path, FileDescriptor(uninterrupted(
                        [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }))};
    require_regular(file);
    return file;
  }

  std::uint64_t size(const File& file) const override {
    struct stat status {};
    if (::fstat(file.descriptor.get(), &status) != 0) fail("look at", file.path);
    return static_cast<std::uint64_t>(status.st_size);
  }

  std::size_t read_some(const File& file, std::uint64_t offset,
                        std::span<std::byte> into) const override {
    TUTTI_CHECK(offset <= static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()),
                "offset {} in {}", offset, file.path.string());
    const auto read = uninterrupted([&] {
      return ::pread(file.descriptor.get(), into.data(), into.size(), static_cast<off_t>(offset));
    });
    if (read < 0) fail("read", file.path);
    return static_cast<std::size_t>(read);
  }

  File create(const fs::path& path) override {
    File file{path, FileDescriptor(uninterrupted([&] {
                return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
              }))};
    if (!file.descriptor) fail("create", path);
    return file;
  }

  File append(const fs::path& path) override {
    constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK;
    File file{path,
              FileDescriptor(uninterrupted([&] { return ::open(path.c_str(), kFlags, 0666); }))};
    require_regular(file);
    return file;
  }

  std::optional<File> lock(const fs::path& path) override {
    File file = append(path);
    if (uninterrupted([&] { return ::flock(file.descriptor.get(), LOCK_EX | LOCK_NB); }) == 0)
      return file;
    if (errno == EWOULDBLOCK) return std::nullopt;
    const bool unknown = errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP;
    if (!unknown) fail("lock", path);
    return file;
  }

  std::size_t write_some(const File& file, std::span<const std::byte> bytes) override {
    const auto written =
        uninterrupted([&] { return ::write(file.descriptor.get(), bytes.data(), bytes.size()); });
    if (written < 0) fail("write", file.path);
    if (written == 0 && !bytes.empty()) fail("write", file.path, EIO);
    return static_cast<std::size_t>(written);
  }

  void cut(const File& file, std::uint64_t bytes) override {
    if (uninterrupted(
            [&] { return ::ftruncate(file.descriptor.get(), static_cast<off_t>(bytes)); }) != 0)
      fail("cut", file.path);
  }

  void sync(const File& file) override {
    if (uninterrupted([&] { return ::fsync(file.descriptor.get()); }) != 0)
      fail("write to disk", file.path);
  }

  void create_folder(const fs::path& folder) override {
    if (::mkdir(folder.c_str(), 0777) != 0) fail("make folder", folder);
  }

  void sync_folder(const fs::path& folder) override {
    const FileDescriptor opened(
        uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!opened) fail("open folder", folder);
    // Some file systems have no fsync for folders and fail with EINVAL.
    if (uninterrupted([&] { return ::fsync(opened.get()); }) != 0 && errno != EINVAL)
      fail("write to disk", folder);
  }

  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      fail(fmt::format("rename {} to", from.string()).c_str(), to);
  }

  void remove_all(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail("remove", path, error.value());
  }
};

}  // namespace

std::shared_ptr<Files> host_files() { return std::make_shared<HostFiles>(); }

void write_all(Files& files, const File& file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) bytes = bytes.subspan(files.write_some(file, bytes));
}

void append_whole(Files& files, const File& file, std::span<const std::byte> bytes) {
  const std::uint64_t before = files.size(file);
  try {
    write_all(files, file, bytes);
  } catch (const Error&) {
    try {
      files.cut(file, before);
    } catch (const Error& error) {
      log().warn("what could not be written whole is left behind: {}", error.what());
    }
    throw;
  }
}

void read_all(const Files& files, const File& file, std::uint64_t offset,
              std::span<std::byte> into) {
  while (!into.empty()) {
    const std::size_t read = files.read_some(file, offset, into);
    if (read == 0)
      throw Corrupt(fmt::format("{} ends at byte {}, where {} more were expected",
                                file.path.string(), offset, into.size()));
    offset += read;
    into = into.subspan(read);
  }
}

void ensure_folder(Files& files, const fs::path& folder) {
  if (files.exists(folder)) return;
  if (folder.has_relative_path() && folder.has_parent_path())
    ensure_folder(files, folder.parent_path());
  try {
    files.create_folder(folder);
  } catch (const IoError&) {
    if (!files.exists(folder)) throw;  // else another process has made it meanwhile
  }
  files.sync_folder(folder.parent_path());
}

}  // namespace tutti
