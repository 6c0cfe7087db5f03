#include "doctor_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "doctor.h"
#include "hosts_list.h"
#include "remote_shell.h"

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

/// Names of --cpu that both processors have.
std::vector<std::string> common_levels(const json& a, const json& b) {
  std::vector<std::string> common;
  const auto& others = b.at("cpu_levels");
  for (const auto& level : a.at("cpu_levels"))
    if (std::find(others.begin(), others.end(), level) != others.end())
      common.push_back(level.get<std::string>());
  return common;
}

class Comparison {
 public:
  Comparison(const HostAnswer& first, const HostAnswer& other) : a_(first), b_(other) {}

  std::vector<HostCheck> run() {
    for (const auto& [what, key] : kTheSame) {
      const auto mine = text_of(a_.facts.at(key));
      const auto theirs = text_of(b_.facts.at(key));
      add(mine == theirs ? Grade::ok : Grade::error, what, mine, theirs,
          "their workers refuse one another");
    }
    const auto mine = processor_of(a_.facts);
    const auto theirs = processor_of(b_.facts);
    add(mine == theirs ? Grade::ok : Grade::warning, "processor", mine, theirs,
        fmt::format("their workers refuse one another without --cpu; both have {}",
                    fmt::join(common_levels(a_.facts, b_.facts), ", ")));
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
    answer.problem = fmt::format("cannot be asked: {}", std::strerror(errno));
    return answer;
  }
  std::string text;
  std::array<char, 4096> bytes{};
  while (const auto got = std::fread(bytes.data(), 1, bytes.size(), output))
    text.append(bytes.data(), got);
  const int status = ::pclose(output);
  answer.facts = json::parse(text, nullptr, false);
  if (!answer.facts.is_object())
    answer.problem = fmt::format("`tutti doctor` gives no answer there: {}", ending_of(status));
  return answer;
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
      const auto more = Comparison(*first, host).run();
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
  const std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                          "doctor", "--json"};
  std::vector<FILE*> outputs;
  for (const auto& host : entries) {
    const auto line = remote_line(words);
    const auto command = host.is_here()
                             ? line
                             : fmt::format("exec {} {} {} < /dev/null", ssh.empty() ? kSsh : ssh,
                                           shell_word(host.name), shell_word(line));
    outputs.push_back(::popen(command.c_str(), "re"));
  }
  std::vector<HostAnswer> answers;
  for (std::size_t host = 0; host < entries.size(); ++host)
    answers.push_back(answer_of(entries[host].name, outputs[host]));
  bool is_good = true;
  for (const auto& check : compare_hosts(answers)) {
    const char* grade = check.grade == Grade::ok        ? "ok"
                        : check.grade == Grade::warning ? "warning"
                                                        : "ERROR";
    fmt::print("{:<9}{:<20}{}\n", grade, check.what, check.text);
    is_good = is_good && check.grade != Grade::error;
  }
  fmt::print("\n{}\n", is_good ? "These hosts can train together."
                               : "These hosts cannot train together as they are.");
  return is_good ? 0 : 1;
}

}  // namespace tutti::command
