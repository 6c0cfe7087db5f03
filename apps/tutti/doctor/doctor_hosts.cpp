#include "apps/tutti/doctor/doctor_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "apps/tutti/doctor/doctor.h"
#include "apps/tutti/doctor/link_probe.h"
#include "apps/tutti/run/hosts_list.h"
#include "apps/tutti/run/remote_shell.h"
#include "base/file_descriptor.h"
#include "base/processor.h"

namespace tutti::command {
namespace {

using nlohmann::json;
using Grade = HostCheck::Grade;

/// The workers of two hosts refuse one another where one of these differs.
constexpr std::array<std::pair<const char*, const char*>, 3> kTheSame = {
    {{"tutti", "version"}, {"libtorch", "libtorch"}, {"torch, MKL, oneDNN", "library_settings"}}};

std::string text_of(const json& value) {
  if (value.is_null()) return "none";
  if (value.is_object()) {
    std::vector<std::string> items;
    for (const auto& [name, each] : value.items())
      items.push_back(fmt::format("{}={}", name, each.get<std::string>()));
    return items.empty() ? "no variable" : fmt::format("{}", fmt::join(items, ", "));
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string processor_of(const json& facts) {
  const auto& processor = facts.at("processor");
  return fmt::format("{} family {} model {}, {}", text_of(processor.at("vendor")),
                     text_of(processor.at("family")), text_of(processor.at("model")),
                     text_of(processor.at("extensions")));
}

/// Names of --cpu that both processors have, and by which their workers compute the same bits.
std::vector<std::string> common_levels(const json& a, const json& b) {
  const auto of = [](const json& facts) { return facts.at("processor").at("architecture"); };
  if (of(a) != of(b)) return {};
  if (of(a) == name_of(Architecture::aarch64)) return {};  // no level bounds Arm Compute Library
  std::vector<std::string> common;
  const auto& others = b.at("cpu_levels");
  for (const auto& level : a.at("cpu_levels"))
    if (std::find(others.begin(), others.end(), level) != others.end())
      common.push_back(level.get<std::string>());
  return common;
}

class HostComparison {
 public:
  HostComparison(const HostAnswer& first, const HostAnswer& other) : a_(first), b_(other) {}

  std::vector<HostCheck> run() {
    for (const auto& [what, key] : kTheSame) {
      const auto mine = text_of(a_.facts.at(key));
      const auto theirs = text_of(b_.facts.at(key));
      add(mine == theirs ? Grade::ok : Grade::error, what, mine, theirs,
          "their workers refuse one another");
    }
    const auto mine = processor_of(a_.facts);
    const auto theirs = processor_of(b_.facts);
    const auto levels = common_levels(a_.facts, b_.facts);
    add(mine == theirs ? Grade::ok : Grade::warning, "processor", mine, theirs,
        levels.empty() ? "their workers refuse one another, with every --cpu"
                       : fmt::format("their workers refuse one another without --cpu; both have {}",
                                     fmt::join(levels, ", ")));
    // Tutti's own kernels give the same bits for every instruction set.
    add(Grade::ok, "SIMD", text_of(a_.facts.at("simd")), text_of(b_.facts.at("simd")), "");
    const auto here = text_of(a_.facts.at("processors").at("usable"));
    const auto there = text_of(b_.facts.at("processors").at("usable"));
    add(here == there ? Grade::ok : Grade::warning, "processors", here, there,
        "with as many workers each, the others wait for those of the smaller host");
    return checks_;
  }

 private:
  void add(Grade grade, const char* what, const std::string& mine, const std::string& theirs,
           const std::string& meaning) {
    auto text = mine == theirs ? fmt::format("{} and {}: {}", a_.name, b_.name, mine)
                               : fmt::format("{}: {}; {}: {}", a_.name, mine, b_.name, theirs);
    if (grade != Grade::ok) text += ": " + meaning;
    checks_.push_back({grade, what, std::move(text)});
  }

  const HostAnswer& a_;
  const HostAnswer& b_;
  std::vector<HostCheck> checks_;
};

/// Of a process whose output is read to its end.
struct ShellOutput {
  std::string text;
  int status = 0;
};

ShellOutput read_all(FILE* output) {
  ShellOutput read;
  std::array<char, 4096> bytes{};
  while (const auto got = std::fread(bytes.data(), 1, bytes.size(), output))
    read.text.append(bytes.data(), got);
  read.status = ::pclose(output);
  return read;
}

/// "a,b:2" with a number of workers for each, as `tutti run --hosts` has it.
std::string with_numbers(const std::string& hosts) {
  std::string list;
  std::istringstream entries(hosts);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto colon = entry.rfind(':');
    const bool has_number = colon != std::string::npos && entry.find(']', colon) == entry.npos;
    list.append(list.empty() ? "" : ",").append(entry).append(has_number ? "" : ":1");
  }
  return list;
}

std::string ending_of(int status) {
  return WIFEXITED(status) ? fmt::format("exit status {}", WEXITSTATUS(status))
                           : fmt::format("killed by signal {}", WTERMSIG(status));
}

HostAnswer answer_of(const std::string& name, FILE* output) {
  HostAnswer answer{name, {}};
  if (output == nullptr) {
    answer.problem = fmt::format("cannot be asked: {}", error_text(errno));
    return answer;
  }
  const auto [text, status] = read_all(output);
  answer.facts = json::parse(text, nullptr, false);
  if (!answer.facts.is_object())
    answer.problem = fmt::format("`tutti doctor` gives no answer there: {}", ending_of(status));
  return answer;
}

/// Runs `tutti` with these arguments on hosts.
class RemoteTutti {
 public:
  explicit RemoteTutti(const std::string& ssh) : ssh_(ssh.empty() ? kSsh : ssh) {}

  FILE* start(const HostEntry& host, const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const auto line = remote_line(words);
    const auto command = host.is_here() ? line
                                        : fmt::format("exec {} {} {} < /dev/null", ssh_,
                                                      shell_word(host.name), shell_word(line));
    return ::popen(command.c_str(), "re");
  }

 private:
  std::string ssh_;
};

/// A connection of `other` to `first`, by the name that --hosts has.
HostCheck check_link(const RemoteTutti& tutti, const HostEntry& first, const HostEntry& other) {
  const auto problem = [&](const std::string& text) {
    return HostCheck{Grade::error, "connection",
                     fmt::format("{} to {}: {}", other.name, first.name, text)};
  };
  FILE* const served = tutti.start(first, {"doctor", "--probe-serve", first.name});
  if (served == nullptr) return problem("cannot be tried");
  int port = 0;
  if (std::fscanf(served, "%d", &port) != 1) {
    ::pclose(served);
    return problem(fmt::format("{} cannot listen at that name", first.name));
  }
  FILE* const measured =
      tutti.start(other, {"doctor", "--probe", first.name, "--probe-port", std::to_string(port)});
  const auto figures = measured == nullptr ? std::nullopt : read_figures(read_all(measured).text);
  ::pclose(served);
  if (!figures) return problem("cannot be made");
  constexpr double kMega = 1e6;
  return {Grade::ok, "connection",
          fmt::format("{} to {}: round trip {:.3f} ms, {:.0f} MB/s there, {:.0f} MB/s back",
                      other.name, first.name, figures->round_trip * 1e3, figures->there / kMega,
                      figures->back / kMega)};
}

void print(const HostCheck& check) {
  const char* grade = check.grade == Grade::ok        ? "ok"
                      : check.grade == Grade::warning ? "warning"
                                                      : "ERROR";
  fmt::print("{:<9}{:<20}{}\n", grade, check.what, check.text);
}

}  // namespace

std::vector<HostCheck> compare_hosts(const std::vector<HostAnswer>& hosts) {
  std::vector<HostCheck> checks;
  const HostAnswer* first = nullptr;
  for (const HostAnswer& host : hosts) {
    if (!host.problem.empty()) {
      checks.push_back({Grade::error, "host", fmt::format("{}: {}", host.name, host.problem)});
      continue;
    }
    try {
      const auto own = host.facts.at("problems").get<std::vector<std::string>>();
      for (const auto& problem : own)
        checks.push_back({Grade::error, "host", fmt::format("{}: {}", host.name, problem)});
      if (own.empty())
        checks.push_back({Grade::ok, "host", fmt::format("{}: can train", host.name)});
      if (first == nullptr) {
        first = &host;
        continue;
      }
      const auto more = HostComparison(*first, host).run();
      checks.insert(checks.end(), more.begin(), more.end());
    } catch (const json::exception&) {
      checks.push_back(
          {Grade::error, "tutti",
           fmt::format("{} and {}: their versions differ, their facts cannot be "
                       "compared",
                       first == nullptr ? hosts.front().name : first->name, host.name)});
    }
  }
  return checks;
}

int doctor_hosts(const std::string& hosts, const std::string& ssh) {
  const auto entries = parse_hosts(with_numbers(hosts));
  const RemoteTutti tutti(ssh);
  std::vector<FILE*> outputs;
  for (const auto& host : entries) outputs.push_back(tutti.start(host, {"doctor", "--json"}));
  std::vector<HostAnswer> answers;
  for (std::size_t host = 0; host < entries.size(); ++host)
    answers.push_back(answer_of(entries[host].name, outputs[host]));
  auto checks = compare_hosts(answers);
  for (std::size_t host = 1; host < entries.size(); ++host)
    if (answers.front().problem.empty() && answers[host].problem.empty())
      checks.push_back(check_link(tutti, entries.front(), entries[host]));
  for (const auto& check : checks) print(check);
  const bool is_good = std::ranges::none_of(
      checks, [](const HostCheck& check) { return check.grade == Grade::error; });
  fmt::print("\n{}\n", is_good ? "These hosts can train together."
                               : "These hosts cannot train together as they are.");
  return is_good ? 0 : 1;
}

}  // namespace tutti::command
