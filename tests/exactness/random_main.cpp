// Whole training runs at random, each beside one worker that never stops: script/exactness
// --random.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/log.h"
#include "exactness/random_runs.h"

namespace tutti::test::exact {
namespace {

using Time = std::chrono::steady_clock;

double seconds_since(Time::time_point begin) {
  return std::chrono::duration<double>(Time::now() - begin).count();
}

std::string command_of(std::uint64_t seed, std::uint64_t number, const Choices::Fixed& fixed) {
  auto text = fmt::format("script/exactness --case {}:{}", seed, number);
  for (const auto& [name, value] : fixed) text += fmt::format(" --with {}={}", name, value);
  return text;
}

/// One line: how to repeat it, what it is, what differs first.
void report(std::uint64_t seed, std::uint64_t number, const Choices::Fixed& fixed,
            const Choices& one, const std::string& trouble) {
  auto line = trouble;
  for (auto& c : line) c = c == '\n' ? ';' : c;
  fmt::print("{}: {} ({})\n", command_of(seed, number, fixed), line, one.text());
  std::fflush(stdout);
}

/// Plain choices for all that the trouble does not need.
Choices::Fixed reduce(RandomRuns& runs, std::uint64_t seed, std::uint64_t number,
                      Choices::Fixed fixed) {
  for (bool changed = true; changed;) {
    changed = false;
    const auto one = draw_case(seed, number, fixed);
    for (const auto& name : one.unusual()) {
      auto fewer = fixed;
      fewer[name] = one.plain(name);
      try {
        if (runs.try_out(draw_case(seed, number, fewer)).trouble.empty()) continue;
      } catch (const std::invalid_argument&) {
        continue;  // another choice is no option then
      }
      fixed = fewer;
      changed = true;
      break;
    }
  }
  return fixed;
}

struct Arguments {
  double seconds = 0;
  std::uint64_t seed = 1;
  std::uint64_t cases = 0;
  std::string one;
  std::vector<std::string> with;
  bool reduces = false;
};

int repeat(RandomRuns& runs, const Arguments& arguments) {
  const auto colon = arguments.one.find(':');
  if (colon == std::string::npos) throw std::invalid_argument("--case takes SEED:NUMBER");
  const auto seed = std::stoull(arguments.one.substr(0, colon));
  const auto number = std::stoull(arguments.one.substr(colon + 1));
  Choices::Fixed fixed;
  for (const auto& choice : arguments.with) {
    const auto equals = choice.find('=');
    if (equals == std::string::npos) throw std::invalid_argument("--with takes NAME=VALUE");
    fixed[choice.substr(0, equals)] = choice.substr(equals + 1);
  }
  auto one = draw_case(seed, number, fixed);
  auto verdict = runs.try_out(one);
  if (verdict.trouble.empty()) {
    fmt::print("case {}:{} {} ({})\n", seed, number,
               verdict.is_refused ? "is refused, alike" : "is equal", one.text());
    return 0;
  }
  if (arguments.reduces) {
    fixed = reduce(runs, seed, number, fixed);
    one = draw_case(seed, number, fixed);
    verdict = runs.try_out(one);
  }
  report(seed, number, fixed, one, verdict.trouble);
  return 1;
}

int run_many(RandomRuns& runs, const Arguments& arguments) {
  constexpr int kMaxReports = 10;
  const auto begin = Time::now();
  std::uint64_t number = 0;
  std::uint64_t refused = 0;
  int workers = 0;
  int troubles = 0;
  const auto goes_on = [&] {
    if (troubles == kMaxReports) return false;
    return arguments.cases > 0 ? number < arguments.cases
                               : seconds_since(begin) < arguments.seconds;
  };
  for (; goes_on(); ++number) {
    const auto one = draw_case(arguments.seed, number);
    const auto verdict = runs.try_out(one);
    refused += verdict.is_refused;
    workers += verdict.workers;
    if (verdict.trouble.empty()) continue;
    ++troubles;
    fmt::print("after {:.1f} s: ", seconds_since(begin));
    report(arguments.seed, number, {}, one, verdict.trouble);
  }
  const auto took = seconds_since(begin);
  fmt::print(
      "{} random runs of seed {} in {:.1f} s ({:.1f}/s, {} workers): {} equal, {} refused alike, "
      "{} different\n",
      number, arguments.seed, took, static_cast<double>(number) / took, workers,
      number - refused - static_cast<std::uint64_t>(troubles), refused, troubles);
  return troubles == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Whole training runs at random, each beside one worker that never stops");
  app.add_option("--random", arguments.seconds, "For so many seconds");
  app.add_option("--cases", arguments.cases, "So many cases");
  app.add_option("--seed", arguments.seed, "The same cases on any machine");
  app.add_option("--case", arguments.one, "SEED:NUMBER, a case that a line has named");
  app.add_option("--with", arguments.with, "NAME=VALUE, a choice of that case")->take_all();
  app.add_flag("--reduce", arguments.reduces, "Leave out of it what the difference does not need");
  CLI11_PARSE(app, argc, argv);
  set_log_level("error");
  warm_up_torch();
  const Refusals refusals(TUTTI_SOURCE "/docs/combinations.md");
  RandomRuns runs(refusals);
  if (!arguments.one.empty()) return repeat(runs, arguments);
  if (arguments.seconds <= 0 && arguments.cases == 0) {
    throw std::invalid_argument("say --random SECONDS, --cases K or --case SEED:NUMBER");
  }
  return run_many(runs, arguments);
}

}  // namespace
}  // namespace tutti::test::exact

int main(int argc, char** argv) {
  try {
    return tutti::test::exact::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
