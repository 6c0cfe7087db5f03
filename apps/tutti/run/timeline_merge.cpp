#include "apps/tutti/run/timeline_merge.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "apps/tutti/text/write_all.h"
#include "base/file_descriptor.h"

namespace tutti::command {
namespace {

// The text that Timeline (base/timeline.h) writes around a worker's events, and at the end of its
// last one.
constexpr std::string_view kHead = R"({"traceEvents":[)";
constexpr std::string_view kTail = "]}";
constexpr std::string_view kEndOfEvent = "}";
constexpr std::size_t kCopyBytes = std::size_t{256} << 10;

struct Part {
  std::string path;
  FileDescriptor file;
  off_t events_end = 0;
};

std::string read_at(const Part& part, off_t from, std::size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t got = pread(part.file.get(), text.data(), bytes, from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

constexpr off_t size_of(std::string_view text) { return static_cast<off_t>(text.size()); }

// A part is complete when its worker has ended in an orderly way.
bool is_complete(Part& part) {
  struct stat info {};
  if (fstat(part.file.get(), &info) != 0 || info.st_size < size_of(kHead) + size_of(kTail))
    return false;
  part.events_end = info.st_size - size_of(kTail);
  if (read_at(part, 0, kHead.size()) != kHead ||
      read_at(part, part.events_end, kTail.size()) != kTail)
    return false;
  return part.events_end == size_of(kHead) ||
         read_at(part, part.events_end - 1, kEndOfEvent.size()) == kEndOfEvent;
}

enum class Copy { done, failed, stopped };

Copy copy_events(const Part& part, int to, const std::function<bool()>& stop) {
  for (off_t at = size_of(kHead); at < part.events_end;) {
    if (stop()) return Copy::stopped;
    const auto left = static_cast<std::size_t>(part.events_end - at);
    const std::string piece = read_at(part, at, std::min(left, kCopyBytes));
    if (piece.empty() || !write_all(to, piece)) return Copy::failed;
    at += size_of(piece);
  }
  return Copy::done;
}

Copy write_merged(const std::string& path, const std::vector<Part>& parts,
                  const std::function<bool()>& stop) {
  FileDescriptor to(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!to || !write_all(to.get(), kHead)) return Copy::failed;
  bool first = true;
  for (const Part& part : parts) {
    if (part.events_end == size_of(kHead)) continue;
    if (!first && !write_all(to.get(), ",\n")) return Copy::failed;
    first = false;
    if (const Copy copy = copy_events(part, to.get(), stop); copy != Copy::done) return copy;
  }
  if (!write_all(to.get(), kTail) || !to.close()) return Copy::failed;
  return Copy::done;
}

}  // namespace

std::string timeline_part(const std::string& file, int rank) {
  return fmt::format("{}.rank{}", file, rank);
}

void remove_timeline(const std::string& file, int workers) {
  std::error_code ignored;
  for (int rank = 0; rank < workers; ++rank)
    std::filesystem::remove(timeline_part(file, rank), ignored);
  std::filesystem::remove(file, ignored);
}

std::vector<std::string> merge_timeline_files(const std::string& file, int workers,
                                              const std::function<bool()>& stop) {
  std::vector<std::string> problems;
  std::vector<Part> parts;
  for (int rank = 0; rank < workers; ++rank) {
    Part part{.path = timeline_part(file, rank), .file = {}};
    part.file = FileDescriptor(open(part.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!part.file) continue;
    if (is_complete(part)) {
      parts.push_back(std::move(part));
    } else {
      problems.push_back(fmt::format("timeline {}: not a complete timeline; left out", part.path));
    }
  }
  if (parts.empty()) return problems;
  const std::string unfinished = file + ".merging";
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);
  std::string failure;
  const Copy copy = write_merged(unfinished, parts, stop);
  if (copy == Copy::stopped) {
    failure = "interrupted";
  } else if (copy == Copy::failed || std::rename(unfinished.c_str(), file.c_str()) != 0) {
    failure = error_text(errno);
  }
  if (!failure.empty()) {
    problems.push_back(
        fmt::format("timeline {}: {}; the workers' parts are left as they are", file, failure));
    std::filesystem::remove(unfinished, ignored);
    return problems;
  }
  for (const Part& part : parts) std::filesystem::remove(part.path, ignored);
  return problems;
}

}  // namespace tutti::command
