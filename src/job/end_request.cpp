#include "job/end_request.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <mutex>
#include <set>
#include <thread>

#include "base/timeline.h"
#include "job/job_state.h"
#include "job/wire/frame.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGUSR1};
/// How long a worker that carries others' connections waits for their ends.
constexpr std::chrono::seconds kOthersEnd{10};

// What the handler touches. Atomics that need no lock may be used there.
std::atomic<std::int64_t> first_request{0};  // nanoseconds of the monotonic clock; 0: none
std::atomic<int> postponed{0};
std::atomic<int> late_signal{0};  // a second request
static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);

/// The jobs that somebody ends. Tests have several in a process.
std::mutex claims_mutex;
std::set<const JobState*> claims;  // guarded by claims_mutex

/// By the signal, as if nobody had asked to note it.
void end_by(int signal) noexcept {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  ::raise(signal);  // in a handler of this signal: takes effect when it returns
}

void note(int signal) {
  const int error = errno;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto nanoseconds = now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
  std::int64_t first = 0;
  if (!first_request.compare_exchange_strong(first, nanoseconds) &&
      nanoseconds - first > std::chrono::nanoseconds(kSameEndRequest).count()) {
    late_signal.store(signal);
    if (postponed.load() == 0) end_by(signal);
  }
  errno = error;
}

/// The workers whose connections to the job this one carries where another launcher has started it:
/// the first of a host those of its host, rank 0 all.
RankSet carried(const JobState& job) {
  const int rank = job.identity().rank;
  const auto& hosts = job.hosts();
  if (rank == kHubRank) return RankSet::below(hosts.size()) - RankSet({rank});
  const auto& here = hosts.neighbours(rank);
  return here.first() == rank ? here - RankSet({rank}) : RankSet();
}

}  // namespace

void note_end_requests(JobState& job) {
  if (!job.is_news("notes requests to end")) return;
  struct sigaction action {};
  action.sa_handler = &note;
  action.sa_flags = SA_RESTART;
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
  job.rendezvous().note_saves();
}

bool end_was_requested() noexcept { return first_request.load() != 0; }

EndClaim::EndClaim(JobState& job) : job_(&job) {
  const std::lock_guard lock(claims_mutex);
  if (claims.insert(job_).second) return;
  throw InvalidArgument(
      "another Trainer saves on a signal already, and ends the job when it has saved itself: ask "
      "Job::should_end() after each step of both, save both, and return kResumeStatus");
}

EndClaim::~EndClaim() {
  const std::lock_guard lock(claims_mutex);
  claims.erase(job_);
}

EndPostponed::EndPostponed() noexcept { ++postponed; }

EndPostponed::~EndPostponed() {
  if (--postponed == 0 && late_signal.load() != 0) end_by(late_signal.load());
}

void end_to_resume(JobState& job) {
  const auto until = Clock::now() + kOthersEnd;
  while (!(carried(job) - job.gone().all).empty() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (job.timeline() != nullptr) job.timeline()->finish();
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  ::_exit(kResumeStatus);
}

}  // namespace tutti
