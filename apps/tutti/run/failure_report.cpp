#include "apps/tutti/run/failure_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <ranges>
#include <set>

#include "tutti/job.h"

namespace tutti::command {
namespace {

constexpr std::size_t kMaxShownBytes = 1000;  // of one line

std::string opening_line(const std::string& text) {
  return text.substr(0, std::min(text.find('\n'), kMaxShownBytes));
}

bool has_failed(std::span<const Outcome> outcomes, int rank) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [&](const Outcome& one) { return one.rank == rank && one.failed(); });
}

// A worker that hears of a failure blames the one that found it, which blames the one that caused
// it. Follows the blame from worker to worker for as long as it is about the same failure, and
// returns the last one.
Blame origin_of(const Blame& heard, std::span<const Blame> blames) {
  std::set<int> seen = {heard.rank};
  const Blame* last = &heard;
  while (seen.insert(last->culprit).second) {
    const auto next = std::ranges::find_if(blames, [&](const Blame& found) {
      return found.rank == last->culprit && !seen.contains(found.culprit) &&
             last->text.find(opening_line(found.text)) != std::string::npos;
    });
    if (next == blames.end()) break;
    last = &*next;
  }
  return *last;
}

// Whether the worker names another failed one as the cause.
bool is_echo(int rank, std::span<const Outcome> outcomes, std::span<const Blame> blames) {
  return std::any_of(blames.begin(), blames.end(), [&](const Blame& blame) {
    return blame.rank == rank && blame.culprit != rank &&
           (has_failed(outcomes, blame.culprit) ||
            has_failed(outcomes, origin_of(blame, blames).culprit));
  });
}

// The end of the worker to which its blame leads and that did not fail: it had to be ended, or it
// ended well while others needed it. Empty where there is no such worker.
std::string end_of_culprit(int rank, std::span<const Outcome> outcomes,
                           std::span<const Blame> blames) {
  // The latest counts: earlier failures may have been lived through.
  for (const Blame& blame : std::views::reverse(blames)) {
    if (blame.rank != rank || blame.culprit == rank) continue;
    const Blame origin = origin_of(blame, blames);
    const std::string who = origin.rank == rank ? "it" : fmt::format("rank {}", origin.rank);
    for (const Outcome& outcome : outcomes) {
      if (outcome.rank != origin.culprit) continue;
      if (outcome.failed()) return {};
      if (outcome.was_ended)
        return fmt::format(", after rank {}, which {} blames and which had to be stopped",
                           outcome.rank, who);
      return fmt::format("; {} blames rank {}, which ended by itself with {}", who, outcome.rank,
                         outcome.ending.describe());
    }
  }
  return {};
}

// The first line of what it told the launcher and did not write. Empty: nothing.
std::string untold_cause(int rank, std::span<const Blame> blames, const Written& written) {
  std::string untold;
  for (const Blame& blame : blames) {
    if (blame.rank != rank || blame.culprit == rank) continue;
    const std::string cause = opening_line(blame.text);
    const bool is_written =
        std::any_of(written.last_lines.begin(), written.last_lines.end(),
                    [&](const std::string& line) { return line.find(cause) != std::string::npos; });
    if (is_written) return {};
    if (untold.empty()) untold = cause;
  }
  return untold;
}

// "rank 3", "ranks 0 2"
std::string name_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, " "));
}

// The part of the failure's reason that has not been shown yet.
std::vector<std::string> unread_reason(int rank, std::span<const Blame> blames,
                                       const Written& written) {
  std::vector<std::string> lines;
  if (const std::string untold = untold_cause(rank, blames, written); !untold.empty()) {
    lines.push_back(fmt::format("tutti run: rank {}: {}", rank, untold));
  } else if (written.last_lines.empty()) {
    lines.push_back(fmt::format("tutti run: rank {} wrote nothing", rank));
  }
  if (!written.frames.empty())
    lines.push_back(fmt::format("tutti run: rank {}: {}", rank, written.frames));
  return lines;
}

}  // namespace

std::optional<int> first_failure(std::span<const Outcome> outcomes, std::span<const Blame> blames) {
  std::optional<int> first_ended;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.failed()) continue;
    if (!first_ended) first_ended = outcome.rank;
    if (!is_echo(outcome.rank, outcomes, blames)) return outcome.rank;
  }
  return first_ended;
}

std::vector<std::string> failure_report(int first, std::span<const Outcome> outcomes,
                                        std::span<const Blame> blames, const Written& written,
                                        int needed, int workers) {
  const bool may_survive = needed < static_cast<int>(outcomes.size());
  std::vector<int> echoes;
  std::vector<int> failed;
  std::vector<int> ended;
  std::string how;
  for (const Outcome& outcome : outcomes) {
    if (outcome.rank == first) {
      how = outcome.ending.describe();
    } else if (outcome.failed()) {
      const bool in_consequence = !may_survive && is_echo(outcome.rank, outcomes, blames);
      (in_consequence ? echoes : failed).push_back(outcome.rank);
    } else if (outcome.was_ended) {
      ended.push_back(outcome.rank);
    }
  }
  std::vector<std::string> report;
  if (!echoes.empty())
    report.push_back(fmt::format("tutti run: {} failed in consequence", name_ranks(echoes)));
  if (!failed.empty())
    report.push_back(fmt::format("tutti run: {} failed too", name_ranks(failed)));
  if (!ended.empty())
    report.push_back(
        fmt::format("tutti run: {} did not end and had to be stopped", name_ranks(ended)));
  if (may_survive && needed > 1)
    report.push_back(fmt::format(
        "tutti run: the others were ended: --min-workers {} asks for more than were left", needed));
  for (std::string& line : unread_reason(first, blames, written)) report.push_back(std::move(line));
  report.push_back(fmt::format("tutti run: rank {} of {} failed first: {}{}", first,
                               std::max(workers, static_cast<int>(outcomes.size())), how,
                               end_of_culprit(first, outcomes, blames)));
  return report;
}

bool have_finished(std::span<const Outcome> outcomes, int needed) {
  const auto finished = std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& one) {
    return one.ending.success() && !one.was_ended;
  });
  return finished >= needed;
}

bool have_saved(std::span<const Outcome> outcomes, int needed) {
  const auto has_saved = [](const Outcome& one) {
    return one.ending.exit_status() == kResumeStatus;
  };
  const auto is_well = [&](const Outcome& one) { return one.ending.success() || has_saved(one); };
  return std::any_of(outcomes.begin(), outcomes.end(), has_saved) &&
         std::count_if(outcomes.begin(), outcomes.end(), is_well) >= needed;
}

bool all_succeeded(std::span<const Outcome> outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(),
                     [](const Outcome& one) { return one.ending.success(); });
}

std::string saved_line() {
  return fmt::format(
      "tutti run: the workers have saved and ended, as a signal asked for: start the run again to "
      "resume it (status {})",
      kResumeStatus);
}

std::string loss_line(const Outcome& lost, int workers, int left) {
  return fmt::format("tutti run: rank {} of {} failed: {}; {} left", lost.rank, workers,
                     lost.ending.describe(),
                     left == 1 ? "1 worker is" : fmt::format("{} workers are", left));
}

std::vector<std::string> survivors_report(std::span<const Outcome> outcomes,
                                          std::span<const Blame> blames,
                                          std::span<const Written> written) {
  std::vector<int> finished;
  std::vector<std::string> lost;
  std::vector<std::string> report;
  for (const Outcome& outcome : outcomes) {
    if (outcome.ending.success()) {
      finished.push_back(outcome.rank);
      continue;
    }
    lost.push_back(fmt::format("rank {} ({})", outcome.rank, outcome.ending.describe()));
    const Written& of_it = written[static_cast<std::size_t>(outcome.rank)];
    for (std::string& line : unread_reason(outcome.rank, blames, of_it))
      report.push_back(std::move(line));
  }
  report.push_back(fmt::format("tutti run: {} of {} finished without {}", name_ranks(finished),
                               outcomes.size(), fmt::join(lost, ", ")));
  return report;
}

std::string restart_line(int restart, int restarts) {
  return fmt::format("tutti run: restart {} of {}", restart, restarts);
}

std::string restart_line_with_cause(const Outcome& first, int restart, int restarts) {
  return fmt::format("{}: rank {} failed: {}", restart_line(restart, restarts), first.rank,
                     first.ending.describe());
}

std::string nobody_joined_note(int workers, double seconds) {
  return fmt::format(
      "tutti run: note: after {} s no worker has called tutti::Job::join(): if the program does "
      "not, "
      "these are {} programs that know nothing of each other",
      seconds, workers);
}

std::string strangers_note(int workers) {
  return fmt::format(
      "tutti run: note: no worker called tutti::Job::join(): these were {} programs that know "
      "nothing of each other",
      workers);
}

}  // namespace tutti::command
