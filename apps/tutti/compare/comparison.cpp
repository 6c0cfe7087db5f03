#include "apps/tutti/compare/comparison.h"

#include <fmt/format.h>
#include <algorithm>
#include <sstream>

#include "run/files/strict_json.h"

namespace tutti::command {
namespace {

constexpr std::size_t kMaxListed = 10;
constexpr std::size_t kMaxNameBytes = 400;

}  // namespace

std::string as_list(const std::vector<std::string>& differences) {
  std::string text;
  const std::size_t listed = std::min(differences.size(), kMaxListed);
  for (std::size_t i = 0; i < listed; ++i) text += "  " + differences[i] + "\n";
  if (listed < differences.size())
    text += fmt::format("  … and {} more\n", differences.size() - listed);
  return text;
}

std::string facts_text(const RunFingerprint& a, const RunFingerprint& b) {
  std::istringstream lines(facts_diff(a, b, {.first = "in A", .second = "in B"}));
  std::string text;
  for (std::string line; std::getline(lines, line);) text += "facts: " + line + "\n";
  return text;
}

std::string quoted(const std::string& name) { return shown(name, kMaxNameBytes); }

std::string counted(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace tutti::command
