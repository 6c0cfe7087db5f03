#include "golden/golden_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/hash.h"

namespace tutti::test::golden {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::string_view kBetween = ": ";
constexpr std::size_t kDigits = 16;
constexpr std::size_t kMaxShown = 12;

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(fmt::format("{} cannot be read", path.string()));
  return text.str();
}

std::map<std::string, std::string> by_name(const Lines& lines) {
  return {lines.begin(), lines.end()};
}

/// Takes the object out of the tree, where it has its place and "…" for a value.
ordered_json take(ordered_json& tree, const char* name) {
  if (!tree.contains(name)) return ordered_json::object();
  return std::exchange(tree[name], "…");
}

/// A line for each tensor, in the order of the header.
void add_tensors(const fs::path& path, Lines& lines) {
  const auto name = path.filename().string();
  const auto bytes = bytes_of_file(path);
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw std::runtime_error(name + " is too short");
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = ordered_json::parse(bytes.substr(sizeof length, length));
  const char* const begin = bytes.data() + sizeof length + length;
  for (const auto& [key, entry] : header.items()) {
    const auto what = fmt::format("{} {}", name, ordered_json(key).dump());
    if (key == "__metadata__") {
      lines.emplace_back(what, entry.dump());
      continue;
    }
    const auto from = entry.at("data_offsets").at(0).get<std::size_t>();
    const auto to = entry.at("data_offsets").at(1).get<std::size_t>();
    if (to > bytes.size()) throw std::runtime_error(what + " reaches beyond the file");
    lines.emplace_back(
        what, fmt::format("{} {} {}", entry.at("dtype").get<std::string>(),
                          entry.at("shape").dump(), short_digest(begin + from, to - from)));
  }
}

}  // namespace

fs::path golden_folder() { return fs::path(TUTTI_SOURCE) / "tests" / "golden"; }

std::string text_of(const Lines& lines) {
  std::string text;
  for (const auto& [name, value] : lines) text += fmt::format("{}{}{}\n", name, kBetween, value);
  return text;
}

Lines lines_of_text(const std::string& text) {
  Lines lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    const auto between = line.find(kBetween);
    if (line.starts_with('#') || between == std::string::npos) continue;
    lines.emplace_back(line.substr(0, between), line.substr(between + kBetween.size()));
  }
  return lines;
}

Lines read_lines(const fs::path& file) {
  return fs::exists(file) ? lines_of_text(bytes_of_file(file)) : Lines();
}

void write_lines(const fs::path& file, const std::string& comment, const Lines& lines) {
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out << "# " << comment << '\n' << text_of(lines) << std::flush;
  if (!out) throw std::runtime_error(fmt::format("{} cannot be written", file.string()));
}

Lines without_prefix(const std::string& prefix, const Lines& lines) {
  Lines some;
  for (const auto& [name, value] : lines) {
    if (name.starts_with(prefix)) some.emplace_back(name.substr(prefix.size()), value);
  }
  return some;
}

Lines with_prefix(const std::string& prefix, const Lines& lines) {
  Lines longer;
  for (const auto& [name, value] : lines) longer.emplace_back(prefix + name, value);
  return longer;
}

std::string differences(const Lines& golden, const Lines& now) {
  if (golden == now) return "";
  const auto before = by_name(golden);
  const auto after = by_name(now);
  std::vector<std::string> parts;
  Lines gone;
  Lines fresh;
  for (const auto& [name, value] : golden) {
    const auto is = after.find(name);
    if (is == after.end()) {
      gone.emplace_back(name, value);
    } else if (is->second != value) {
      parts.push_back(fmt::format("{}\n  golden: {}\n  now:    {}\n", name, value, is->second));
    }
  }
  for (const auto& line : now) {
    if (!before.contains(line.first)) fresh.push_back(line);
  }
  // A renamed line stands beside its new name.
  for (std::size_t k = 0; k < std::max(gone.size(), fresh.size()); ++k) {
    if (k < gone.size()) parts.push_back(fmt::format("gone: {}", text_of({gone[k]})));
    if (k < fresh.size()) parts.push_back(fmt::format("new:  {}", text_of({fresh[k]})));
  }
  std::string text;
  for (std::size_t k = 0; k < std::min(parts.size(), kMaxShown); ++k) text += parts[k];
  if (parts.size() > kMaxShown) text += fmt::format("and {} more\n", parts.size() - kMaxShown);
  if (!parts.empty()) return text;
  const auto moved = std::mismatch(golden.begin(), golden.end(), now.begin(), now.end());
  return fmt::format("the order of the lines\n  golden: {}\n  now:    {}\n",
                     moved.first == golden.end() ? "(no more)" : moved.first->first,
                     moved.second == now.end() ? "(no more)" : moved.second->first);
}

std::string short_digest(const void* data, std::size_t bytes) {
  Sha256 hash;
  hash.update(data, bytes);
  return hash.hex().substr(0, kDigits);
}

Lines lines_of_log(const fs::path& file) {
  Lines lines;
  std::istringstream all(bytes_of_file(file));
  int number = 0;
  for (std::string line; std::getline(all, line);) {
    const auto where = fmt::format("log line {}", ++number);
    auto tree = ordered_json::parse(line);
    const auto facts = take(tree, "facts");
    const auto digests = take(tree, "digests");
    lines.emplace_back(where, tree.dump());
    if (!facts.empty()) {  // a checkpoint's manifest has them to be read
      const auto text = facts.dump();
      lines.emplace_back(where + " facts", fmt::format("{}, {}", facts.size(),
                                                       short_digest(text.data(), text.size())));
    }
    for (const auto& [name, value] : digests.items()) {
      lines.emplace_back(fmt::format("{} digest {}", where, ordered_json(name).dump()),
                         value.get<std::string>().substr(0, kDigits));
    }
  }
  return lines;
}

Lines lines_of_checkpoint(const fs::path& folder) {
  auto tree = ordered_json::parse(bytes_of_file(folder / "manifest.json"));
  const auto facts = take(tree, "facts");
  auto state = take(tree, "state");
  const auto files = take(tree, "files");
  tree["run"] = tree["sha256"] = "…";
  Lines lines = {{"manifest", tree.dump()}};
  for (const auto& [name, value] : facts.items()) {
    lines.emplace_back(fmt::format("manifest fact {}", ordered_json(name).dump()), value.dump());
  }
  if (state.contains("arithmetic")) {  // the machine's values
    for (auto& value : state["arithmetic"]) value = "…";
  }
  for (const auto& [name, value] : state.items()) {
    lines.emplace_back(fmt::format("manifest state {}", ordered_json(name).dump()), value.dump());
  }
  for (const auto& [name, value] : files.items()) {
    lines.emplace_back(fmt::format("manifest file {}", ordered_json(name).dump()), value.dump());
  }
  for (const auto& [name, value] : files.items()) add_tensors(folder / name, lines);
  return lines;
}

int version_of_checkpoint(const fs::path& folder) {
  return ordered_json::parse(bytes_of_file(folder / "manifest.json")).at("version").get<int>();
}

}  // namespace tutti::test::golden
