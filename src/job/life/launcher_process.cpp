#include "job/life/launcher_process.h"

#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

namespace tutti {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Process {
  std::string parent;   ///< its number
  std::string started;  ///< clock ticks since the system's start
};

/// proc(5): the fields after the name, which is in brackets and may have anything in it.
Process read_process(const std::filesystem::path& folder) {
  const std::string stat = text_of(folder / "stat");
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat.substr(name_end + 1));
  constexpr int kParent = 4;
  constexpr int kStarted = 22;
  Process process;
  std::string field;
  for (int number = 3; number <= kStarted && fields >> field; ++number) {
    if (number == kParent) process.parent = field;
    if (number == kStarted) process.started = field;
  }
  return process;
}

bool has_variable(const std::filesystem::path& folder, std::string_view name) {
  const std::string all = '\0' + text_of(folder / "environ");
  return all.find(fmt::format("{}{}=", '\0', name)) != std::string::npos;
}

}  // namespace

LauncherProcess find_launcher_process(const std::filesystem::path& root,
                                      std::string_view rank_variable) {
  const auto proc = root / "proc";
  std::string number = read_process(proc / "self").parent;
  Process process = read_process(proc / number);
  while (has_variable(proc / number, rank_variable) && process.parent != "0") {
    number = process.parent;
    process = read_process(proc / number);
  }
  const auto boot = text_of(proc / "sys" / "kernel" / "random" / "boot_id");
  return {number, fmt::format("boot {} process {} started {}", boot, number, process.started)};
}

}  // namespace tutti
