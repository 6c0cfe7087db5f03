#include "apps/tutti/run/host_environment.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "apps/tutti/text/refusal.h"
#include "base/cpu_level.h"
#include "base/number.h"
#include "tutti/environment.h"

namespace tutti::command {
namespace {

/// A pipe holds at least this much, so that who writes it needs not wait for who reads it.
constexpr std::size_t kMostInput = 60'000;

std::string name_of(const std::string& variable) { return variable.substr(0, variable.find('=')); }

bool is_passed_on(const std::string& name, const LibrarySettings& libraries) {
  if (name == "TUTTI_TOKEN" || name == "TUTTI_PROFILE") return false;
  return name.starts_with("TUTTI_") || libraries.contains(name);
}

bool read_byte(char& byte) {
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got > 0) return true;
    if (got == 0 || errno != EINTR) return false;
  }
}

}  // namespace

void check_variable(const std::string& asked) {
  if (name_of(asked).empty())
    throw Refusal(kUsageStatus, fmt::format("--env \"{}\": must be NAME or NAME=value", asked));
}

std::vector<std::string> variables_for_hosts(const std::vector<std::string>& asked,
                                             const std::vector<std::string>& inherited) {
  const auto libraries = Environment::read().libraries;
  std::vector<std::string> variables;
  for (const auto& variable : inherited)
    if (is_passed_on(name_of(variable), libraries)) variables.push_back(variable);
  for (const auto& each : asked) {
    if (each.find('=') != std::string::npos) {
      variables.push_back(each);
      continue;
    }
    const auto found = std::ranges::find(inherited, each, name_of);
    if (found == inherited.end())
      throw Refusal(kUsageStatus, fmt::format("--env {}: is not set here", each));
    variables.push_back(*found);
  }
  return variables;
}

std::string text_of(const HostInput& input) {
  std::string variables;
  for (const auto& each : input.variables) variables.append(each).push_back('\0');
  if (variables.size() > kMostInput)
    throw Refusal(kUsageStatus,
                  fmt::format("--env: the variables for other hosts have {} bytes, at most {} are "
                              "passed on",
                              variables.size(), kMostInput));
  return fmt::format("{}\n{}\n{}", input.token, variables.size(), variables);
}

std::optional<std::string> read_input_line() {
  std::string line;
  char byte = 0;
  while (read_byte(byte)) {
    if (byte == '\n') return line;
    line += byte;
  }
  return {};
}

std::optional<HostInput> read_host_input() {
  const auto token = read_input_line();
  const auto size = read_input_line();
  if (!token || !size) return {};
  auto left = parse_number<std::size_t>(*size).value_or(0);
  HostInput input{.token = *token, .variables = {}};
  std::string variable;
  for (char byte = 0; left > 0; --left) {
    if (!read_byte(byte)) return {};
    if (byte != '\0') {
      variable += byte;
      continue;
    }
    input.variables.push_back(std::move(variable));
    variable.clear();
  }
  return input;
}

void set_variables(const std::vector<std::string>& variables) {
  for (const auto& each : variables) {
    const auto name = name_of(each);
    ::setenv(name.c_str(), each.c_str() + name.size() + 1, 1);
  }
}

}  // namespace tutti::command
