#pragma once

// Watches over running workers until all have ended and all they wrote is printed: one loop over
// their ends, their pipes, the signals to this process and its own output.
//
// Threads: one.

#include <functional>
#include <optional>
#include <vector>

#include "apps/tutti/run/escalation.h"
#include "apps/tutti/run/failure_report.h"
#include "apps/tutti/run/signal_inbox.h"
#include "apps/tutti/run/worker_output.h"
#include "apps/tutti/run/worker_process.h"
#include "apps/tutti/text/output.h"

namespace tutti::command {

/// Time after the last worker's end for which a child that it left behind may keep a pipe open.
inline constexpr std::chrono::milliseconds kDrain = std::chrono::milliseconds(500);
/// Time for killing the processes that workers have left behind.
inline constexpr std::chrono::milliseconds kEndOfLeftovers = std::chrono::seconds(1);

/// Time for which an interrupted run waits for a reader that does not read.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(2);

/// Time for which the text of an error that a worker did not catch is kept, so that equal texts of
/// several workers are printed once.
inline constexpr std::chrono::milliseconds kLastWords = std::chrono::seconds(1);

struct Worker {
  WorkerProcess process;
  WorkerOutput& output;
};

struct SupervisorOptions {
  int needed = 1;      ///< when fewer workers than these have not failed, the others are ended
  int first_rank = 0;  ///< that of workers[0]
  /// Another launcher has started this one. It announces interruptions, and ends this one when
  /// workers of other hosts have failed: then the report of a failure here still counts.
  bool of_host = false;
  std::chrono::milliseconds termination = kTermination;  ///< from SIGTERM to SIGKILL
  /// Whether a worker, asked to end, first saves what it has: then all have the time that takes.
  /// Empty: none does.
  std::function<bool()> saves = {};
  std::function<void()> on_saving = {};  ///< called when they begin to; empty: nothing
  std::optional<int> interrupted = {};   ///< the signal that has ended the run before
  /// Asked once, when the workers have run for `join_notice`; empty: never. Returns a line to
  /// print, or an empty one.
  std::function<std::string()> join_note = {};
  std::chrono::milliseconds join_notice = {};
};

class Supervisor {
 public:
  /// All must outlive the supervisor. workers[i] is rank first_rank + i.
  Supervisor(std::vector<Worker>& workers, const SupervisorOptions& options, Output& output,
             SignalInbox& signals);

  /// Returns when all workers have ended, with all that they had started, and what they wrote has
  /// been queued.
  void watch();
  /// Ends all workers as after a failure: first they are given the time to end by themselves.
  void end_all() { escalation_.begin(Clock::now()); }
  /// The signal that has ended the run has only asked workers to save what they have.
  bool saves() const { return saves_; }
  /// Workers of hosts, asked to end, save what they have: their launchers end them in time.
  void wait_for_saves() { escalation_ = Escalation(options_.termination); }
  /// Prints what is queued. A signal ends the wait for a reader that does not read; after an
  /// interruption the wait ends when it has read nothing for kPatience.
  void flush() {
    print_while([&] { return !output_.empty(); });
  }
  /// The same, until there is room for what comes.
  void make_room() {
    print_while([&] { return output_.full(); });
  }
  /// Prints what can be printed without waiting for the reader.
  void flush_ready() {
    print_while([&] { return !output_.empty(); }, /*waits=*/false);
  }

  /// The workers' ends, in their order.
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  /// The signal that ended the run from outside.
  std::optional<int> interrupted() const { return interrupted_; }

 private:
  enum class Source { signals, end, out, errors, printer };
  struct Watched {
    Source source;
    std::size_t rank;
  };
  bool all_ended() const { return outcomes_.size() == workers_.size(); }
  bool streams_open();
  bool drained(Clock::time_point now);
  void wait(Clock::time_point now);
  int timeout(Clock::time_point now) const;
  bool take_signals();
  void take_end(std::size_t rank);
  void lose(std::size_t rank, const Outcome& lost);
  void end_leftovers();
  void keep_last_words(Clock::time_point now);
  void print_last_words();
  void note_who_joined(Clock::time_point now);
  void read(std::size_t rank, Stream stream, std::size_t at_most);
  bool print();
  void print_while(const std::function<bool()>& wanted, bool waits = true);
  void say_why(int signal);
  void interrupt(int signal, int forwarded);
  void hurry();
  void send(int signal);

  std::vector<Worker>& workers_;
  SupervisorOptions options_;
  Output& output_;
  SignalInbox& signals_;
  Escalation escalation_;
  std::vector<pid_t> pids_;
  std::vector<Outcome> outcomes_;
  std::vector<bool> ended_;
  std::vector<bool> was_told_;  // to end, by a signal
  std::optional<Clock::time_point> drain_until_;
  std::optional<Clock::time_point> join_note_at_;
  std::optional<Clock::time_point> last_words_at_;
  std::optional<int> interrupted_;
  bool hurried_ = false;  // interrupted again: nothing is waited for any more
  bool saves_ = false;    // interrupted, and workers save what they have
};

}  // namespace tutti::command
