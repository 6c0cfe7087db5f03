// Jobs of several hosts under chaos, each in a process of its own: script/exactness --chaos.

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/deadline.h"
#include "chaos/chaos_case.h"
#include "chaos/chaos_program.h"
#include "chaos/chaos_world.h"
#include "job/job_state.h"
#include "tutti/error.h"

namespace tutti::test::chaos {
namespace {

/// Longer than the case itself waits for its workers.
constexpr std::chrono::seconds kLongest{90};

Ending run_worker(const ChaosCase& one, ChaosWorld& world, ModelSteps& model, int rank) {
  Ending ending{.kind = Ending::Kind::finished, .culprit = -1, .text = {}};
  try {
    Identity identity{rank, one.size(), 1};
    identity.hosts = one.map();
    const Job job(std::make_shared<JobState>(identity, std::make_shared<ChaosSystem>(world, rank),
                                             world.hosts().rendezvous(rank),
                                             JobOptions{.join_deadline = std::chrono::seconds(20),
                                                        .deadline = std::chrono::seconds(20)}));
    run_operations(one, job, model,
                   {.wrong = [&](const std::string& text) { world.wrong(rank, text); },
                    .chance = [&] { world.chance(rank); }});
  } catch (const PeerLost& lost) {
    ending = {Ending::Kind::lost, lost.rank(), lost.what()};
  } catch (const std::exception& error) {
    ending = {Ending::Kind::failed, -1, error.what()};
  }
  return ending;
}

/// In a process of its own, which ends by this: whoever has died still waits.
[[noreturn]] void run_case(const ChaosCase& one) {
  auto* const world = new ChaosWorld(one);
  auto* const model = new ModelSteps;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < one.size(); ++rank) {
    threads.emplace_back(
        [&one, world, model, rank] { world->end(rank, run_worker(one, *world, *model, rank)); });
  }
  bool good = world->wait();
  auto trouble = world->verdict();
  if (trouble.empty() && ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) {
    trouble = "wrong bytes: see what googletest prints";
  }
  good = good && trouble.empty();
  if (good) world->close();  // brokers end too
  if (!good) fmt::print("\n{}{}\n", trouble, world->endings());
  std::fflush(stdout);
  ::_exit(good ? 0 : 1);
}

struct Running {
  std::uint64_t number = 0;
  pid_t process = 0;
  int output = -1;
  Clock::time_point until;
  std::string text;
};

struct Arguments {
  std::uint64_t cases = 300;
  std::uint64_t first = 0;
  std::uint64_t seed = 1;
  unsigned at_once = 4;
  bool verbose = false;
};

class Cases {
 public:
  explicit Cases(const Arguments& arguments) : arguments_(arguments) {}

  int run() {
    const auto begin = Clock::now();
    auto next = arguments_.first;
    const auto end = arguments_.first + arguments_.cases;
    while (next < end || !running_.empty()) {
      while (next < end && running_.size() < arguments_.at_once) start(next++);
      look();
    }
    const auto seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print("{} cases of seed {} in {:.0f} s: {} failed\n", arguments_.cases, arguments_.seed,
               seconds, failed_);
    for (const auto& [what, count] : counts_) fmt::print("  {:5} {}\n", count, what);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  void start(std::uint64_t number) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::fflush(stdout);
    const pid_t process = ::fork();
    if (process < 0) std::abort();
    if (process == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      run_case(draw_case(arguments_.seed, number));
    }
    ::close(ends[1]);
    running_.push_back({number, process, ends[0], Clock::now() + kLongest, {}});
  }

  void look() {
    std::vector<pollfd> polled;
    for (const auto& one : running_) polled.push_back({one.output, POLLIN, 0});
    ::poll(polled.data(), polled.size(), 100);
    for (std::size_t k = 0; k < polled.size(); ++k) {
      auto& one = running_[k];
      const bool is_late = Clock::now() >= one.until;
      if (is_late) ::kill(one.process, SIGKILL);
      if (polled[k].revents == 0 && !is_late) continue;
      std::array<char, 4096> bytes;
      const auto got = ::read(one.output, bytes.data(), bytes.size());
      if (got > 0 && !is_late) {
        one.text.append(bytes.data(), static_cast<std::size_t>(got));
        continue;
      }
      int status = 0;
      ::waitpid(one.process, &status, 0);
      ::close(one.output);
      one.output = -1;
      judge(one, status, is_late);
    }
    std::erase_if(running_, [](const Running& one) { return one.output < 0; });
  }

  void judge(const Running& one, int status, bool is_late) {
    const auto what = draw_case(arguments_.seed, one.number);
    ++counts_[fault_text(what.fault)];
    const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (good && !arguments_.verbose) return;
    failed_ += good ? 0 : 1;
    const auto why = good                  ? "good"
                     : is_late             ? "does not end"
                     : WIFSIGNALED(status) ? fmt::format("ended by signal {}", WTERMSIG(status))
                                           : "failed";
    auto text = one.text;
    if (!arguments_.verbose && text.size() > 3000) text.erase(0, text.size() - 3000);
    fmt::print("script/exactness --chaos 1 --first {} --seed {}: {} ({}){}\n", one.number,
               arguments_.seed, why, what.text(), text);
    std::fflush(stdout);
  }

  static const char* fault_text(Fault fault) {
    switch (fault) {
      case Fault::none:
        return "without a failure";
      case Fault::worker_dies:
        return "with the death of a worker";
      case Fault::host_dies:
        return "with the death of a host";
      case Fault::host_stops:
        return "with a host that stops";
      case Fault::cable:
        return "with a cable that breaks";
      case Fault::links_break:
        return "with links that break";
      case Fault::host_pauses:
        return "with a host that pauses";
    }
    return "";
  }

  Arguments arguments_;
  std::vector<Running> running_;
  std::uint64_t failed_ = 0;
  std::map<std::string, std::uint64_t> counts_;
};

bool parse(int count, char** words, Arguments& arguments) {
  for (int k = 1; k < count; ++k) {
    const std::string name = words[k];
    if (name == "--verbose") {
      arguments.verbose = true;
      continue;
    }
    if (k + 1 == count) return false;
    const std::string text = words[++k];
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    if (name == "--chaos") {
      arguments.cases = value;
    } else if (name == "--first") {
      arguments.first = value;
    } else if (name == "--seed") {
      arguments.seed = value;
    } else if (name == "--at-once" && value > 0) {
      arguments.at_once = static_cast<unsigned>(value);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace tutti::test::chaos

int main(int count, char** words) {
  using namespace tutti::test::chaos;
  Arguments arguments;
  if (!parse(count, words, arguments)) {
    fmt::print(stderr,
               "usage: chaos [--chaos CASES] [--first NUMBER] [--seed S] [--at-once K] "
               "[--verbose]\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  prepare_model();
  return Cases(arguments).run();
}
