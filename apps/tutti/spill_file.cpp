#include "spill_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>

namespace tutti::command {
namespace {

// Blocks are freed as a whole: multiples of this are edges of blocks on any file system.
constexpr off_t kFreedAtATime = off_t{1} << 20;

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

}  // namespace

bool SpillFile::push(int kind, std::string_view text) {
  if (!file_) file_ = make_unnamed_file();
  if (!file_) return false;
  const Header header{.kind = kind, .bytes = text.size()};
  const off_t next = end_ + static_cast<off_t>(sizeof header + text.size());
  if (next - freed_ > most_) {
    errno = EFBIG;
    return false;
  }
  if (!write_all(&header, sizeof header, end_) ||
      !write_all(text.data(), text.size(), end_ + static_cast<off_t>(sizeof header))) {
    const int error = errno;
    cut(end_);  // a full disk took a part of it
    errno = error;
    return false;
  }
  end_ = next;
  return true;
}

std::optional<SpillFile::Entry> SpillFile::pop() {
  if (empty()) return {};
  Header header{};
  Entry entry;
  bool whole = read_all(&header, sizeof header, read_at_);
  if (whole) {
    entry.kind = header.kind;
    entry.text.resize(header.bytes);
    whole = read_all(entry.text.data(), header.bytes, read_at_ + static_cast<off_t>(sizeof header));
  }
  read_at_ = whole ? read_at_ + static_cast<off_t>(sizeof header + header.bytes) : end_;
  free_what_was_read();
  if (!whole) return {};
  return entry;
}

// The file of a reader that is slow all the time never becomes empty.
void SpillFile::free_what_was_read() {
  if (empty()) {
    cut(0);
    read_at_ = end_ = freed_ = 0;
    return;
  }
  const off_t end = read_at_ / kFreedAtATime * kFreedAtATime;
  if (end > freed_ &&
      fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, freed_, end - freed_) == 0)
    freed_ = end;
}

void SpillFile::cut(off_t bytes) {
  [[maybe_unused]] const int ignored = ftruncate(file_.get(), bytes);
}

bool SpillFile::write_all(const void* bytes, std::size_t count, off_t at) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = pwrite(file_.get(), from, count, at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    from += done;
    at += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

bool SpillFile::read_all(void* bytes, std::size_t count, off_t at) {
  char* to = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t done = pread(file_.get(), to, count, at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    to += done;
    at += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace tutti::command
