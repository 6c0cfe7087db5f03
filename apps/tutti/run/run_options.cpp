#include "apps/tutti/run/run_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "apps/tutti/run/cpu_option.h"
#include "apps/tutti/run/host_environment.h"
#include "apps/tutti/run/hosts_list.h"
#include "apps/tutti/text/refusal.h"
#include "base/number.h"
#include "tutti/environment.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

constexpr int kMaxThreads = 4096;
constexpr double kMaxDeadline = 1e9;  // seconds

[[noreturn]] void refuse(const std::string& text) { throw Refusal(kUsageStatus, text); }

template <class Number>
[[noreturn]] void refuse_workers(const Number& given) {
  refuse(fmt::format("-n {}: the number of workers must be 1 to {}", given, kMaxWorkersPerHost));
}

// CLI11 reads an empty text as 0.
CLI::Validator is_given(const char* option) {
  return CLI::Validator(
      [option](std::string& text) {
        if (text.empty()) refuse(fmt::format("{} \"\": must be a number", option));
        return std::string();
      },
      "");
}

CLI::Validator is_whole_number_of_workers() {
  return CLI::Validator(
      [](std::string& text) {
        if (!parse_number<int>(text)) refuse_workers(text);
        return std::string();
      },
      "");
}

/// Names that other launchers have for the number of workers.
bool is_number_of_workers(std::string name) {
  std::ranges::replace(name, '_', '-');
  constexpr std::array<std::string_view, 9> kNames = {
      "-np",        "--np",     "--nproc",       "--nprocs",    "--nproc-per-node",
      "--nworkers", "--ntasks", "--num-workers", "--processes",
  };
  return std::ranges::find(kNames, name) != kNames.end();
}

[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& option) {
  if (is_number_of_workers(option))
    refuse(fmt::format("there is no option \"{}\": the number of workers is given by -n", option));
  std::vector<std::string> known;
  for (const CLI::Option* each : app.get_options())
    if (!each->get_group().empty())
      for (const std::string& name : each->get_lnames()) known.push_back("--" + name);
  refuse(fmt::format("there is no option \"{}\"{}", option, did_you_mean(option, known)));
}

/// Levenshtein's distance: the least number of characters to insert, delete or replace.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

void check_hosts(const RunOptions& options) {
  const std::pair<const char*, bool> of_hosts[] = {
      {"--ssh", !options.ssh.empty()},
      {"--port", options.port != 0},
      {"--interface", !options.interface.empty()},
      {"--env", !options.variables.empty()},
      {"--link", !options.link.empty()},
      {"--lanes", options.lanes.has_value()},
      {"--host-index", options.host_index.has_value()}};
  if (options.hosts.empty()) {
    for (const auto& [name, is_there] : of_hosts)
      if (is_there) refuse(fmt::format("{}: is for --hosts", name));
    return;
  }
  const std::pair<const char*, bool> of_one[] = {{"-n", options.workers != 0},
                                                 {"--survivors", options.survivors},
                                                 {"--profile", !options.profile.empty()}};
  for (const auto& [name, is_there] : of_one)
    if (is_there) refuse(fmt::format("{}: not together with --hosts", name));
  constexpr int kMostPort = 65535;
  if (options.port < 0 || options.port > kMostPort)
    refuse(fmt::format("--port {}: must be 1 to {}", options.port, kMostPort));
  if (options.lanes && (*options.lanes < 1 || *options.lanes > kMaxLanes))
    refuse(fmt::format("--lanes {}: must be 1 to {}", *options.lanes, kMaxLanes));
  if (options.link == "mpi")
    refuse("--link mpi: is for workers that mpirun, mpiexec or srun starts, with TUTTI_LINK=mpi");
  for (const auto& each : options.variables) check_variable(each);
  const auto hosts = parse_hosts(options.hosts);
  if (options.host_index &&
      (*options.host_index < 0 || *options.host_index >= static_cast<int>(hosts.size())))
    refuse(fmt::format("--host-index {}: must be below {}", *options.host_index, hosts.size()));
}

}  // namespace

void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("-n,--workers", options.workers,
                 fmt::format("Number of workers, 1 to {}", kMaxWorkersPerHost))
      ->type_name("N")
      ->check(is_given("-n"))
      ->check(is_whole_number_of_workers());
  app.add_option("--threads", options.threads,
                 "Threads of each worker: TUTTI_THREADS, OMP_NUM_THREADS and\n"
                 "MKL_NUM_THREADS are set to it, whatever they were. 1 unless given,\n"
                 "on any machine, because results depend on it")
      ->type_name("T")
      ->check(is_given("--threads"));
  app.add_option("--bind", options.bind,
                 "core: worker r runs on processors r*T to (r+1)*T-1 of those allowed.\n"
                 "none (default): wherever the system puts it")
      ->type_name("core|none");
  app.add_option("--cpu", options.cpu,
                 "Most that libtorch, oneDNN and MKL use of the processor, so that several\n"
                 "kinds compute the same bits: ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and\n"
                 "MKL_CBWR are set. native: what each has. By default as the environment is")
      ->type_name("default|avx2|avx512|native")
      ->check(CLI::Validator(
          [](std::string& text) {
            if (text.empty()) refuse(fmt::format("--cpu \"\": must be {}", cpu_option_values()));
            return std::string();
          },
          ""));
  app.add_option("--deadline", options.deadline,
                 "Seconds that a worker waits for the others before it gives up\n"
                 "(TUTTI_DEADLINE)")
      ->type_name("S")
      ->check(is_given("--deadline"));
  app.add_option("--restarts", options.restarts,
                 "When a worker fails, start all of them again, at most R times. 0\n"
                 "unless given. Programs see it by Job::restarts() (TUTTI_RESTART)")
      ->type_name("R")
      ->check(is_given("--restarts"));
  app.add_flag("--survivors", options.survivors,
               "When a worker fails, do not end the others: they resume without it, as\n"
               "the program has it (docs/errors.md)");
  app.add_option("--min-workers", options.min_workers,
                 "With --survivors: end all when fewer than K have not failed. 1 unless\n"
                 "given")
      ->type_name("K")
      ->check(is_given("--min-workers"));
  app.add_option("--log", options.log_folder,
                 "Also write what worker R prints to DIR/rank-R.log, without prefix")
      ->type_name("DIR");
  app.add_option("--profile", options.profile,
                 "Write a timeline of all workers in Chrome's trace format (TUTTI_PROFILE)")
      ->type_name("FILE");
  app.add_option("--hosts", options.hosts,
                 "In place of -n: so many workers on each of these hosts, where this\n"
                 "command and the program lie in the same places: a:2,b:2. Rank 0 is on\n"
                 "the first. localhost is this machine")
      ->type_name("HOST:N,…");
  app.add_option("--ssh", options.ssh,
                 "With --hosts: the command that gets the name of a host and a line for\n"
                 "its shell. ssh -o BatchMode=yes unless given")
      ->type_name("COMMAND");
  app.add_option("--port", options.port,
                 "With --hosts: where the first host waits for the others. Any free one\n"
                 "unless given")
      ->type_name("P")
      ->check(is_given("--port"));
  app.add_option("--interface", options.interface,
                 "With --hosts: network interface of each host to which sockets between\n"
                 "hosts are bound (TUTTI_INTERFACE)")
      ->type_name("NAME");
  app.add_option("--env", options.variables,
                 "With --hosts: a variable for the workers of all hosts, with its value or\n"
                 "with that which it has here. May be given several times")
      ->type_name("NAME[=value]")
      ->allow_extra_args(false);
  app.add_option("--link", options.link,
                 "With --hosts: how gradients travel between hosts: gloo, tcp, or auto, the\n"
                 "default (TUTTI_LINK). Not mpi: that is for what mpirun or srun starts")
      ->type_name("ENGINE")
      ->check(CLI::IsMember({"auto", "gloo", "mpi", "tcp"}));
  app.add_option(
         "--lanes", options.lanes,
         fmt::format("With --hosts: connections between two hosts, 1 to {}, over which each\n"
                     "kind of their messages is spread; {} unless given (TUTTI_LANES)",
                     kMaxLanes, kDefaultLanes))
      ->type_name("N")
      ->check(is_given("--lanes"));
  app.add_option("--host-index", options.host_index)->group("");
  app.add_option("--join-notice", options.join_notice)->group("");
  app.add_option("--host-run", options.host_run)->group("");
  app.add_option("--host-attempt", options.host_attempt)->group("");
}

std::size_t program_start(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::size_t at = 0;
  while (at < arguments.size()) {
    const std::string& argument = arguments[at];
    if (argument == "--" || argument.size() < 2 || argument[0] != '-') return at;
    const bool is_long = argument[1] == '-';
    const std::string name =
        is_long ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
    const bool has_value = name.size() < argument.size();
    const CLI::Option* option = app.get_option_no_throw(name);
    // CLI11 would read "-np" as "-n p", and miss required options before it names unknown ones.
    if (!option || argument == "-np") refuse_unknown(app, is_long ? name : argument);
    const bool takes_next = option->get_expected_min() > 0 && !has_value;
    at += takes_next ? 2 : 1;
  }
  return arguments.size();
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  constexpr std::size_t kLeastBeginning = 4;
  constexpr std::size_t kMostWrong = 2;
  const std::string* nearest = nullptr;
  std::size_t least = kMostWrong + 1;
  for (const std::string& each : known) {
    const bool begins = name.size() >= kLeastBeginning && each.starts_with(name);
    const std::size_t wrong = begins ? 0 : distance(name, each);
    if (wrong >= least || 2 * wrong >= each.size()) continue;
    least = wrong;
    nearest = &each;
  }
  return nearest ? fmt::format(": did you mean \"{}\"?", *nearest) : "";
}

std::string misplaced_option(const RunOptions& options) {
  if (options.threads_given || options.program_marked) return {};
  for (std::size_t at = 1; at < options.program.size(); ++at) {
    const std::string& argument = options.program[at];
    if (argument == "--") break;
    if (argument == "--threads" || argument.starts_with("--threads=")) return "--threads";
  }
  return {};
}

void check(const RunOptions& options) {
  check_hosts(options);
  if (options.hosts.empty() && (options.workers < 1 || options.workers > kMaxWorkersPerHost))
    refuse_workers(options.workers);
  if (options.threads < 1 || options.threads > kMaxThreads)
    refuse(fmt::format("--threads {}: must be 1 to {}", options.threads, kMaxThreads));
  if (options.restarts < 0)
    refuse(fmt::format("--restarts {}: must be 0 or more", options.restarts));
  if (options.min_workers && !options.survivors)
    refuse(fmt::format("--min-workers {}: is for --survivors", *options.min_workers));
  if (options.min_workers && (*options.min_workers < 1 || *options.min_workers > options.workers))
    refuse(fmt::format("--min-workers {}: must be 1 to {}, the number of workers",
                       *options.min_workers, options.workers));
  if (options.bind != "core" && options.bind != "none")
    refuse(fmt::format("--bind {}: must be core or none", options.bind));
  if (options.deadline &&
      !(*options.deadline >= 0.001 && *options.deadline <= kMaxDeadline))  // not: also refuses NaN
    refuse(fmt::format("--deadline {}: must be a positive number of seconds", *options.deadline));
  if (options.program.empty() || options.program.front().empty())
    refuse("no program given: what should the workers run?");
}

int needed_workers(const RunOptions& options) {
  return options.survivors ? options.min_workers.value_or(1) : options.workers;
}

}  // namespace tutti::command
