#include "base/limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "base/number.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

/// cgroup v1 writes "no limit" as the largest page-aligned number; nothing real comes near.
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 60;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

/// The first word of a file as a number; nothing when absent or not a number ("max", "-1").
std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::istringstream text(read_text(path));
  std::string word;
  text >> word;
  return parse_number<std::uint64_t>(word);
}

/// The number after `key` at the start of a line: "inactive_file 4096", "MemTotal:  8 kB".
std::optional<std::uint64_t> read_entry(const fs::path& path, const std::string& key) {
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t number = 0;
    if (words >> name && name == key && words >> number) return number;
  }
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// mountinfo writes blanks in paths as octal escapes such as \040.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '7';
    };
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

/// A line of /proc/self/mountinfo that mounts a cgroup hierarchy.
struct Mount {
  int generation;
  std::string inside;  ///< folder of the hierarchy that is mounted
  std::string at;
  std::vector<std::string> options;  ///< v1: its controllers
};

std::vector<Mount> read_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::istringstream lines(read_text(root / "proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    if (dash[1] != "cgroup" && dash[1] != "cgroup2") continue;
    mounts.push_back(
        {dash[1] == "cgroup" ? 1 : 2, unescape(words[3]), unescape(words[4]), split(dash[3], ',')});
  }
  return mounts;
}

/// Path of this process in a hierarchy, from /proc/self/cgroup: "4:memory:/a/b" or "0::/a/b".
std::optional<std::string> path_in(const fs::path& root, const Mount& mount,
                                   const std::string& controller) {
  std::istringstream lines(read_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool matches =
        mount.generation == 2 ? names.empty() : contains(split(names, ','), controller);
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// Folders from the process' own group up to the mount point, below `root`.
std::vector<fs::path> folders_of(const fs::path& root, const Mount& mount, std::string path) {
  // A container may mount only its own part of the hierarchy; a path that is not inside it, or that
  // points above a cgroup namespace, only tells that the mount itself contains this process.
  const std::string inside = mount.inside == "/" ? "" : mount.inside;
  const bool below = path.compare(0, inside.size(), inside) == 0 &&
                     (path.size() == inside.size() || path[inside.size()] == '/');
  path = below && path.find("..") == std::string::npos ? path.substr(inside.size()) : "";
  const fs::path top = root / fs::path(mount.at).relative_path();
  std::vector<fs::path> folders{top};
  fs::path at = top;
  for (const std::string& name : split(path, '/'))
    if (!name.empty()) folders.push_back(at /= name);
  std::reverse(folders.begin(), folders.end());
  return folders;
}

std::optional<MemoryBound> bound_of(const fs::path& folder, int generation) {
  const bool v2 = generation == 2;
  const auto limit = read_number(folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  if (!limit || *limit >= kUnlimited) return std::nullopt;
  const std::uint64_t used =
      read_number(folder / (v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
  // Cached file pages count as used, but are given back on demand.
  const std::uint64_t cached =
      read_entry(folder / "memory.stat", v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  const std::uint64_t held = used - std::min(used, cached);
  return MemoryBound{folder.string(), *limit, *limit - std::min(*limit, held)};
}

}  // namespace

std::vector<ControlGroups> find_control_groups(const fs::path& root,
                                               const std::string& controller) {
  std::vector<ControlGroups> found;
  for (const int generation : {1, 2}) {
    for (const Mount& mount : read_mounts(root)) {
      if (mount.generation != generation) continue;
      if (generation == 1 && !contains(mount.options, controller)) continue;
      if (const auto path = path_in(root, mount, controller))
        found.push_back({generation, folders_of(root, mount, *path)});
    }
  }
  return found;
}

std::vector<MemoryBound> read_memory_bounds(const fs::path& root) {
  std::vector<MemoryBound> bounds;
  const fs::path meminfo = root / "proc/meminfo";
  const auto total = read_entry(meminfo, "MemTotal:");
  const auto available = read_entry(meminfo, "MemAvailable:");
  if (total && available) bounds.push_back({"machine", *total * 1024, *available * 1024});
  for (const ControlGroups& groups : find_control_groups(root, "memory"))
    for (const fs::path& folder : groups.folders)
      if (const auto bound = bound_of(folder, groups.generation)) bounds.push_back(*bound);
  return bounds;
}

std::vector<MemoryBound> read_own_memory_bounds() {
  std::vector<MemoryBound> bounds;
  const auto add = [&](const char* name, auto resource, const char* used_by) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const auto used = read_entry("/proc/self/status", used_by).value_or(0) * 1024;
    bounds.push_back({name, limit.rlim_cur, limit.rlim_cur - std::min(limit.rlim_cur, used)});
  };
  add("RLIMIT_AS", RLIMIT_AS, "VmSize:");
  add("RLIMIT_DATA", RLIMIT_DATA, "VmData:");
  return bounds;
}

std::optional<int> read_processor_quota(const fs::path& root) {
  std::optional<int> least;
  for (const ControlGroups& groups : find_control_groups(root, "cpu")) {
    for (const fs::path& folder : groups.folders) {
      std::optional<std::uint64_t> quota;
      std::optional<std::uint64_t> period;
      if (groups.generation == 2) {
        quota = read_number(folder / "cpu.max");
        std::istringstream words(read_text(folder / "cpu.max"));
        std::string first;
        std::uint64_t second = 0;
        if (words >> first >> second) period = second;
      } else {
        quota = read_number(folder / "cpu.cfs_quota_us");
        period = read_number(folder / "cpu.cfs_period_us");
      }
      if (!quota || !period || *quota == 0 || *period == 0) continue;
      const std::uint64_t processors =
          std::min<std::uint64_t>((*quota + *period - 1) / *period, 1 << 20);
      if (!least || static_cast<int>(processors) < *least) least = static_cast<int>(processors);
    }
  }
  return least;
}

}  // namespace tutti
