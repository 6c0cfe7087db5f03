// The command `tutti`: starts training programs, reports what a machine offers, compares runs,
// exports models, shows pipelines' timelines.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tutti/compare/compare.h"
#include "apps/tutti/doctor/doctor.h"
#include "apps/tutti/doctor/link_probe.h"
#include "apps/tutti/export/export.h"
#include "apps/tutti/run/run.h"
#include "apps/tutti/schedule/schedule.h"
#include "apps/tutti/text/refusal.h"
#include "apps/tutti/text/say.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

constexpr const char* kDescription =
    "tutti trains one PyTorch (libtorch) model in C++ on many workers.";
constexpr const char* kExamples =
    "Examples:\n"
    "  tutti run -n 4 ./train --epochs 3       four workers, output prefixed by rank\n"
    "  tutti run -n 2 --threads 8 --bind core ./train\n"
    "  tutti doctor                            what this machine offers for training\n"
    "  tutti compare a.jsonl b.jsonl           the first step at which two runs differ\n"
    "  tutti export --torch checkpoints model.pt\n"
    "  tutti schedule --stages 4 --micro-batches 8   the timeline and the bubble of a pipeline\n";
constexpr const char* kRunUsage =
    "tutti run (-n N | --hosts a:N,b:N) [options] [--] program [arguments]";
constexpr const char* kRunFooter =
    "Everything from the program's name on belongs to the program; \"--\" may stand before it.\n"
    "When a worker fails the others are ended within 5 seconds, and the first failure is what is\n"
    "printed last. With --restarts all are then started again; with --survivors the others resume\n"
    "without it. Exit status: 0, that of the worker that failed first (in the last attempt), or\n"
    "128 + signal.\n"
    "\nExample:\n"
    "  tutti run -n 2 build/bin/char_lm --text LICENSE --steps 200 --micro-batches 4 --seed 1\n";
constexpr const char* kDoctorFooter =
    "Exit status 1 when something would stop training.\n\nExample:\n"
    "  tutti doctor --json | jq .problems\n"
    "  tutti doctor --hosts a,b\n";

constexpr const char* kCompareFooter =
    "A and B are two step logs, compared at the steps that both have digests of, or two\n"
    "checkpoints (folders with a manifest.json), compared byte by byte.\n"
    "Exit status: 0 equal, 1 different, 2 not comparable.\n\nExamples:\n"
    "  tutti compare one/log.jsonl two/log.jsonl\n"
    "  tutti compare one/step-00000200 two/step-00000200\n";

constexpr const char* kExportFooter =
    "CHECKPOINT is one (a folder with a manifest.json) or a folder of them, of which the newest "
    "is\n"
    "taken. Models are read from FILE with torch::load in C++, torch.jit.load in Python.\n"
    "\nExample:\n"
    "  tutti export --torch checkpoints model.pt\n";

constexpr const char* kScheduleFooter =
    "A row for each worker is printed, then its idle share and what its stages keep. That is\n"
    "predicted from the numbers alone, and all stages cost the same.\n"
    "\nExamples:\n"
    "  tutti schedule --stages 4 --micro-batches 8 --kind zb-h1 --svg zb.svg\n"
    "  tutti schedule --stages 8 --workers 4 --micro-batches 8 --kind interleaved --forward 2.5\n";

// CLI11 does not know of the program, which is cut off before it parses.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("Usage: {}\n", kRunUsage);
  }
};

// A descriptor that is free below 3 would be taken by a pipe and mistaken for a standard stream.
void open_standard_streams() {
  for (;;) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd < 0) return;
    if (fd > STDERR_FILENO) {
      close(fd);
      return;
    }
  }
}

int refuse(const std::string& command, const std::string& text, bool show_usage) {
  say(fmt::format("{}: {}", command, text));
  if (show_usage) {
    if (command == "tutti run") say(fmt::format("Usage: {}", kRunUsage));
    say(fmt::format("See {} --help.", command));
  }
  return show_usage ? kUsageStatus : 1;
}

// "--help" and "-h" are options of every command.
bool is_option_of(const CLI::App& app, const std::string& argument) {
  if (argument.size() < 2 || argument[0] != '-') return false;
  const std::string name =
      argument[1] == '-' ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
  return name != "--help" && name != "-h" && app.get_option_no_throw(name) != nullptr;
}

std::string place_of_number(const RunOptions& options) {
  const auto& program = options.program;
  const bool is_behind = std::any_of(program.begin(), program.end(), [](const auto& argument) {
    return argument == "-n" || argument == "--workers";
  });
  if (!is_behind || program.front() == "-n") return {};
  return fmt::format(
      ": what stands behind \"{}\" is for the program; options of tutti run stand "
      "before it",
      program.front());
}

int execute(std::vector<std::string> arguments) {
  CLI::App app(kDescription, "tutti");
  app.set_version_flag("--version", "tutti " TUTTI_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  app.footer(kExamples);

  RunOptions options;
  CLI::App* run_app = app.add_subcommand("run", "Start N workers of a program on this machine");
  run_app->formatter(std::make_shared<RunFormatter>());
  run_app->footer(kRunFooter);
  add_run_options(*run_app, options);

  bool as_json = false;
  CLI::App* doctor_app = app.add_subcommand("doctor", "Say what this machine offers for training");
  doctor_app->add_flag("--json", as_json, "Print one JSON object");
  std::string doctor_list, doctor_ssh;
  CLI::Option* doctor_of_hosts =
      doctor_app
          ->add_option("--hosts", doctor_list,
                       "Ask these hosts, and say whether they can train together")
          ->type_name("HOST,…")
          ->excludes("--json");
  doctor_app
      ->add_option("--ssh", doctor_ssh,
                   "With --hosts: the command that gets the name of a host and a line for\n"
                   "its shell. ssh -o BatchMode=yes unless given")
      ->type_name("COMMAND")
      ->needs(doctor_of_hosts);
  std::string probe_serve, probe_to;
  int probe_port = 0;
  doctor_app->add_option("--probe-serve", probe_serve)->group("");
  doctor_app->add_option("--probe", probe_to)->group("");
  doctor_app->add_option("--probe-port", probe_port)->group("");
  doctor_app->footer(kDoctorFooter);

  std::string a, b;
  CLI::App* compare_app = app.add_subcommand("compare", "Say where two runs begin to differ");
  compare_app->add_option("A", a, "Step log or checkpoint of one run")->required();
  compare_app->add_option("B", b, "The same of the other")->required();
  compare_app->footer(kCompareFooter);

  std::string checkpoint, file;
  bool as_torch = false, averages = false;
  CLI::App* export_app = app.add_subcommand("export", "Write a checkpoint's model as an archive");
  export_app->add_flag("--torch", as_torch, "A torch archive (the one format so far)")->required();
  export_app->add_flag("--averages", averages, "The moving averages in place of the parameters");
  export_app->add_option("CHECKPOINT", checkpoint, "A checkpoint, or a folder of them")->required();
  export_app->add_option("FILE", file, "Where to; replaced where it exists")->required();
  export_app->footer(kExportFooter);

  ScheduleOptions schedule_options;
  CLI::App* schedule_app = app.add_subcommand("schedule", "Predict the timeline of a pipeline");
  add_schedule_options(*schedule_app, schedule_options);
  schedule_app->footer(kScheduleFooter);

  const std::string first = arguments.empty() ? "" : arguments.front();
  const bool is_run = first == "run";
  constexpr std::array<std::string_view, 5> kCommands = {"run", "doctor", "compare", "export",
                                                         "schedule"};
  const bool is_known = std::ranges::find(kCommands, first) != kCommands.end();
  const std::string command = is_known ? "tutti " + first : "tutti";
  if (!is_known && !arguments.empty() && !first.starts_with('-'))
    return refuse(command,
                  fmt::format("there is no command \"{}\"{}", first,
                              did_you_mean(first, {kCommands.begin(), kCommands.end()})),
                  true);
  if (!is_known && is_option_of(*run_app, first)) {
    auto options_and_program = arguments;
    if (const auto run = std::ranges::find(options_and_program, "run");
        run != options_and_program.end())
      options_and_program.erase(run);
    return refuse(command,
                  fmt::format("\"{}\" is an option of tutti run: did you mean \"tutti run {}\"?",
                              first, fmt::join(options_and_program, " ")),
                  true);
  }
  try {
    if (is_run) {
      const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
      const std::size_t start = std::min(program_start(*run_app, rest), rest.size());
      options.program.assign(rest.begin() + static_cast<std::ptrdiff_t>(start), rest.end());
      options.program_marked = !options.program.empty() && options.program.front() == "--";
      if (options.program_marked) options.program.erase(options.program.begin());
      arguments.resize(1 + start);
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(arguments);
    if (!probe_serve.empty()) {
      serve_probe(probe_serve);
      return 0;
    }
    if (!probe_to.empty()) {
      fmt::print("{}\n", text_of(probe(probe_to, probe_port)));
      return 0;
    }
    if (app.got_subcommand(doctor_app))
      return doctor_of_hosts->count() > 0 ? doctor_hosts(doctor_list, doctor_ssh) : doctor(as_json);
    if (app.got_subcommand(compare_app)) return compare(a, b);
    if (app.got_subcommand(export_app)) export_torch(checkpoint, file, averages);
    if (app.got_subcommand(schedule_app)) return schedule(schedule_options);
    options.threads_given = run_app->count("--threads") > 0;
    if (run_app->count("-n") == 0 && options.hosts.empty())
      throw Refusal(kUsageStatus, "neither -n nor --hosts is given" + place_of_number(options));
    check(options);
    return run(options);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return refuse(command, error.what(), true);
  } catch (const Refusal& refusal) {
    refuse(command, refusal.what(), refusal.status() == kUsageStatus);
    return refusal.status();
  } catch (const Error& error) {
    return refuse(command, error.what(), false);
  }
}

}  // namespace
}  // namespace tutti::command

int main(int argc, char** argv) {
  tutti::command::open_standard_streams();
  try {
    return tutti::command::execute({argv + std::min(argc, 1), argv + argc});
  } catch (const std::exception& error) {
    tutti::command::say(fmt::format("tutti: {}", error.what()));
    return 1;
  }
}
