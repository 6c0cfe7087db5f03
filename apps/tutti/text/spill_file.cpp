#include "apps/tutti/text/spill_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "apps/tutti/text/write_all.h"

namespace tutti::command {
namespace {

struct Header {
  int kind = 0;
  std::size_t bytes = 0;
};

FileDescriptor make_unnamed_file() {
  const char* wanted = std::getenv("TMPDIR");
  for (const char* folder : {wanted, "/var/tmp", "/tmp"}) {
    if (!folder) continue;
    FileDescriptor file(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file) return file;
    std::string name = std::string(folder) + "/tutti-XXXXXX";  // a file system without O_TMPFILE
    file = FileDescriptor(mkostemp(name.data(), O_CLOEXEC));
    if (!file) continue;
    unlink(name.c_str());
    return file;
  }
  return {};
}

bool read_all(int from, void* bytes, std::size_t count) {
  for (char* to = static_cast<char*>(bytes); count > 0;) {
    const ssize_t got = read(from, to, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

bool SpillFile::push(int kind, std::string_view text) {
  if (!newest_.file) newest_.file = make_unnamed_file();
  if (!newest_.file) return false;
  const Header header{.kind = kind, .bytes = text.size()};
  const std::size_t added = sizeof header + text.size();
  if (oldest_.all + newest_.all + added > most_) {
    errno = EFBIG;
    return false;
  }
  const int file = newest_.file.get();
  if (!write_all(file, {reinterpret_cast<const char*>(&header), sizeof header}) ||
      !write_all(file, text)) {
    const int error = errno;  // a full disk may have taken a part
    const auto end = static_cast<off_t>(newest_.all);
    [[maybe_unused]] const int ignored = ftruncate(file, end);
    lseek(file, end, SEEK_SET);
    errno = error;
    return false;
  }
  newest_.bytes = newest_.all += added;
  return true;
}

std::optional<SpillFile::Entry> SpillFile::pop() {
  if (oldest_.bytes == 0) {
    oldest_ = std::exchange(newest_, {});
    if (oldest_.bytes == 0) return {};
    lseek(oldest_.file.get(), 0, SEEK_SET);
  }
  const int file = oldest_.file.get();
  Header header;
  Entry entry;
  bool is_whole = read_all(file, &header, sizeof header);
  if (is_whole) {
    entry.kind = header.kind;
    entry.text.resize(header.bytes);
    is_whole = read_all(file, entry.text.data(), header.bytes);
  }
  oldest_.bytes -= is_whole ? sizeof header + header.bytes : oldest_.bytes;
  if (oldest_.bytes == 0) oldest_ = {};
  if (!is_whole) return {};
  return entry;
}

}  // namespace tutti::command
