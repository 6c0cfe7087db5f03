#include "exactness/random_runs.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "support/process_ranks.h"
#include "support/running_command.h"

namespace tutti::test::exact {
namespace {

constexpr std::size_t kMaxWorkers = 8;
constexpr std::size_t kRoom = std::size_t{1} << 20;

/// By kind and step what the log said last; headers differ where a run was stopped.
std::map<std::string, std::string> lines_of_log(const std::string& path) {
  std::map<std::string, std::string> last;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto kind = line.find("\"step\":");
    if (!line.starts_with("{\"kind\"") || kind == std::string::npos) continue;
    last[line.substr(0, line.find(',', kind))] = line;
  }
  return last;
}

std::string text_of(const Choices& one) {
  std::string text;
  for (const auto& stretch : stretches_of(one)) {
    text +=
        fmt::format("{}{}", text.empty() ? "" : fmt::format(", from step {} ", stretch.begin + 1),
                    stretch.workers);
  }
  return text;
}

std::string first_difference(const Transcript& reference, const Transcript& variant,
                             const std::string& variant_is) {
  for (std::size_t k = 0; k < std::max(reference.size(), variant.size()); ++k) {
    const std::string nothing = "nothing more";
    const auto& a = k < reference.size() ? reference[k] : nothing;
    const auto& b = k < variant.size() ? variant[k] : nothing;
    if (a != b) return fmt::format("1 worker: {} | {} workers: {}", a, variant_is, b);
  }
  return {};
}

}  // namespace

RandomRuns::RandomRuns(const Refusals& refusals)
    : refusals_(refusals),
      shared_(static_cast<char*>(::mmap(nullptr, kMaxWorkers * kRoom, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (shared_ == MAP_FAILED) throw std::runtime_error("mmap");
}

RandomRuns::~RandomRuns() { ::munmap(shared_, kMaxWorkers * kRoom); }

RandomRuns::Ended RandomRuns::run(const Choices& one, const Stretch& stretch,
                                  const std::string& folder) {
  const auto room_of = [this](int rank) {
    return shared_ + static_cast<std::size_t>(rank) * kRoom;
  };
  for (int rank = 0; rank < stretch.workers; ++rank) *room_of(rank) = '\0';
  const auto outcome = run_process_ranks(stretch.workers, [&](const Job& job) {
    std::string text;
    for (const auto& line : train_random(one, job, stretch, folder)) text += line + "\n";
    if (text.size() >= kRoom) throw std::runtime_error("too much was said");
    std::memcpy(room_of(job.rank()), text.c_str(), text.size() + 1);
  });
  if (!outcome.all_good()) return {{}, outcome.describe()};
  const std::string said = room_of(0);
  for (int rank = 1; rank < stretch.workers; ++rank) {
    if (said == room_of(rank)) continue;
    return {{},
            fmt::format("rank {} says other things than rank 0: {}", rank,
                        first_difference(lines_of(said), lines_of(room_of(rank)), "rank's"))};
  }
  return {lines_of(said), ""};
}

Verdict RandomRuns::try_out(const Choices& one) {
  Verdict verdict;
  verdict.trouble = judge(one, verdict);
  return verdict;
}

std::string RandomRuns::judge(const Choices& one, Verdict& verdict) {
  const TemporaryFolder folder;
  const auto home = folder.file("");
  const auto reference = run(one, reference_of(one), home);
  ++verdict.workers;
  if (!reference.trouble.empty()) return "1 worker: " + reference.trouble;
  const auto expected = refusals_.reason(one);
  verdict.is_refused = reference.lines.front().starts_with(kRefused);
  if (verdict.is_refused && expected.empty()) {
    return reference.lines.front() + ", which docs/combinations.md does not list";
  }
  if (!verdict.is_refused && !expected.empty()) {
    return "docs/combinations.md says refused: " + expected;
  }
  Transcript variant;
  for (const auto& stretch : stretches_of(one)) {
    const auto ended = run(one, stretch, home);
    verdict.workers += stretch.workers;
    if (!ended.trouble.empty()) return fmt::format("{} workers: {}", text_of(one), ended.trouble);
    variant.insert(variant.end(), ended.lines.begin(), ended.lines.end());
    if (verdict.is_refused) break;
  }
  const auto difference = first_difference(reference.lines, variant, text_of(one));
  if (!difference.empty() || verdict.is_refused || !one.has("log")) return difference;
  const auto one_log = lines_of_log(log_of(reference_of(one), home));
  const auto other = lines_of_log(log_of(stretches_of(one).front(), home));
  if (one_log == other && !one_log.empty()) return {};
  return fmt::format("the step logs differ ({} and {} entries)", one_log.size(), other.size());
}

}  // namespace tutti::test::exact
