#include "apps/tutti/run/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "apps/tutti/run/process_tree.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;  // a pipe's usual capacity
constexpr std::size_t kFinalBytes = 1 << 20;  // of a pipe that a process still writes into

FileDescriptor& descriptor(Worker& worker, Stream stream) {
  return stream == Stream::out ? worker.process.output() : worker.process.errors();
}

int milliseconds_until(Clock::time_point then, Clock::time_point now) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(then - now).count();
  return static_cast<int>(std::max<decltype(left)>(left, 0));
}

}  // namespace

Supervisor::Supervisor(std::vector<Worker>& workers, const SupervisorOptions& options,
                       Output& output, SignalInbox& signals)
    : workers_(workers),
      options_(options),
      output_(output),
      signals_(signals),
      escalation_(options.termination),
      ended_(workers.size()),
      was_told_(workers.size()),
      interrupted_(options.interrupted) {
  for (const Worker& worker : workers_) pids_.push_back(worker.process.pid());
  if (options.join_note) join_note_at_ = Clock::now() + options.join_notice;
}

void Supervisor::watch() {
  for (;;) {
    const auto now = Clock::now();
    if (const auto signal = escalation_.due(now)) send(*signal);
    if (all_ended() && drained(now)) break;
    note_who_joined(now);
    keep_last_words(now);
    wait(now);
  }
  end_leftovers();
  for (std::size_t rank = 0; rank < workers_.size(); ++rank)
    for (const Stream stream : {Stream::out, Stream::error}) {
      read(rank, stream, kFinalBytes);
      if (descriptor(workers_[rank], stream)) workers_[rank].output.finish(stream);
      descriptor(workers_[rank], stream).reset();
    }
  print_last_words();
}

void Supervisor::keep_last_words(Clock::time_point now) {
  const bool any = std::any_of(workers_.begin(), workers_.end(),
                               [](const Worker& worker) { return worker.output.has_last_words(); });
  if (any && !last_words_at_) last_words_at_ = now + kLastWords;
  if (last_words_at_ && now >= *last_words_at_) print_last_words();
}

void Supervisor::print_last_words() {
  last_words_at_.reset();
  struct Words {
    std::vector<std::string> lines;
    std::vector<std::size_t> workers;
  };
  std::vector<Words> all;
  for (std::size_t at = 0; at < workers_.size(); ++at) {
    if (!workers_[at].output.has_last_words()) continue;
    std::vector<std::string> lines = workers_[at].output.take_last_words();
    const auto same = std::ranges::find(all, lines, &Words::lines);
    if (same == all.end()) {
      all.push_back({std::move(lines), {at}});
    } else {
      same->workers.push_back(at);
    }
  }
  for (const Words& words : all) {
    std::vector<int> ranks;
    for (const std::size_t at : words.workers)
      ranks.push_back(options_.first_rank + static_cast<int>(at));
    const std::string prefix = ranks.size() == 1
                                   ? workers_[words.workers[0]].output.prefix(Stream::error)
                                   : ranks_prefix(ranks);
    for (const std::string& line : words.lines) output_.line(Stream::error, prefix, line);
  }
}

void Supervisor::note_who_joined(Clock::time_point now) {
  if (!join_note_at_ || now < *join_note_at_) return;
  join_note_at_.reset();
  if (all_ended() || escalation_.begun()) return;
  if (const std::string note = options_.join_note(); !note.empty())
    output_.line(Stream::error, "", note);
}

bool Supervisor::streams_open() {
  return std::any_of(workers_.begin(), workers_.end(), [](Worker& worker) {
    return worker.process.output() || worker.process.errors();
  });
}

// Does not depend on the reader, who may never read: what ended workers have written lies in their
// pipes, which are read at the end whether there is room or not.
bool Supervisor::drained(Clock::time_point now) {
  if (!streams_open()) return true;
  if (!drain_until_) drain_until_ = now + kDrain;
  return hurried_ || now >= *drain_until_;
}

void Supervisor::wait(Clock::time_point now) {
  std::vector<pollfd> polled;
  std::vector<Watched> watched;
  const auto add = [&](int fd, short events, Source source, std::size_t rank) {
    polled.push_back({.fd = fd, .events = events, .revents = 0});
    watched.push_back({source, rank});
  };
  add(signals_.descriptor(), POLLIN, Source::signals, 0);
  if (!output_.empty()) add(output_.next_descriptor(), POLLOUT, Source::printer, 0);
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    WorkerProcess& process = workers_[rank].process;
    if (!ended_[rank]) add(process.end_descriptor(), POLLIN, Source::end, rank);
    if (output_.full()) continue;
    if (process.output()) add(process.output().get(), POLLIN, Source::out, rank);
    if (process.errors()) add(process.errors().get(), POLLIN, Source::errors, rank);
  }
  if (poll(polled.data(), polled.size(), timeout(now)) <= 0) return;
  for (std::size_t index = 0; index < polled.size(); ++index) {
    if (polled[index].revents == 0) continue;
    switch (watched[index].source) {
      case Source::signals:
        take_signals();
        break;
      case Source::end:
        take_end(watched[index].rank);
        break;
      case Source::out:
        read(watched[index].rank, Stream::out, kReadBytes);
        break;
      case Source::errors:
        read(watched[index].rank, Stream::error, kReadBytes);
        break;
      case Source::printer:
        print();
        break;
    }
  }
}

int Supervisor::timeout(Clock::time_point now) const {
  auto next = escalation_.next();
  if (last_words_at_) next = std::min(next.value_or(*last_words_at_), *last_words_at_);
  if (join_note_at_) next = std::min(next.value_or(*join_note_at_), *join_note_at_);
  if (drain_until_ && *drain_until_ > now)
    next = std::min(next.value_or(*drain_until_), *drain_until_);
  if (!next) return -1;
  return milliseconds_until(*next, now);
}

bool Supervisor::take_signals() {
  bool asked_to_end = false;
  while (const auto signal = signals_.next()) {
    asked_to_end = true;
    if (signals_.abandoned()) {
      interrupted_ = SIGKILL;
      hurry();
    } else {
      interrupt(*signal, *signal);
    }
  }
  if (signals_.child_ended()) reap_children(pids_);
  return asked_to_end;
}

void Supervisor::hurry() {
  hurried_ = true;
  escalation_.hurry(Clock::now());
}

void Supervisor::interrupt(int signal, int forwarded) {
  if (interrupted_ && std::exchange(saves_, false)) return send(forwarded);
  if (interrupted_) return hurry();
  if (options_.of_host && escalation_.begun()) return;
  interrupted_ = signal;
  const bool asks_to_save = forwarded == SIGTERM || forwarded == SIGUSR1;
  saves_ = asks_to_save && options_.saves && options_.saves();
  if (saves_ && options_.on_saving) options_.on_saving();
  if (!all_ended() && !options_.of_host) say_why(signal);
  send(forwarded);
  if (saves_) {
    was_told_.assign(was_told_.size(), false);  // they end by themselves
  } else {
    escalation_.begin(Clock::now());
  }
}

void Supervisor::say_why(int signal) {
  const bool full = signal == SIGPIPE && output_.out_failure() != EPIPE;
  const std::string why = full ? fmt::format("cannot write to standard output: {}",
                                             std::strerror(output_.out_failure()))
                               : signal_name(signal);
  output_.line(
      Stream::error, "",
      saves_
          ? fmt::format("tutti run: {}: workers save and end (once more ends them at once, but for "
                        "a save that is under way; twice more kills them)",
                        why)
          : fmt::format("tutti run: {}: ending all workers (once more kills them at once)", why));
}

void Supervisor::take_end(std::size_t rank) {
  const auto ending = workers_[rank].process.ending();
  if (!ending) return;
  ended_[rank] = true;
  outcomes_.push_back({options_.first_rank + static_cast<int>(rank), *ending, was_told_[rank]});
  // One that has saved what it has ends before others that do the same.
  if (!ending->success() && ending->exit_status() != kResumeStatus) lose(rank, outcomes_.back());
}

/// The others resume without it, or are given the time to end by themselves.
void Supervisor::lose(std::size_t rank, const Outcome& lost) {
  const auto failed = std::count_if(outcomes_.begin(), outcomes_.end(),
                                    [](const Outcome& one) { return !one.ending.success(); });
  const int left = static_cast<int>(workers_.size()) - static_cast<int>(failed);
  if (escalation_.begun() || left < options_.needed) return escalation_.begin(Clock::now());
  workers_[rank].process.signal(SIGKILL);  // what it has left in its process group
  // Its own last lines come before the report of its end.
  for (const Stream stream : {Stream::out, Stream::error})
    if (!output_.full()) read(rank, stream, kReadBytes);
  print_last_words();
  output_.line(Stream::error, "", loss_line(lost, static_cast<int>(workers_.size()), left));
}

void Supervisor::end_leftovers() {
  for (const pid_t pid : end_children(pids_, kEndOfLeftovers))
    output_.line(Stream::error, "",
                 fmt::format("tutti run: process {}, which a worker started, has not ended", pid));
}

void Supervisor::read(std::size_t rank, Stream stream, std::size_t at_most) {
  FileDescriptor& from = descriptor(workers_[rank], stream);
  WorkerOutput& to = workers_[rank].output;
  std::array<char, kReadBytes> bytes;
  for (std::size_t total = 0; from && total < at_most;) {
    const ssize_t got = ::read(from.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      to.finish(stream);
      from.reset();
      return;
    }
    to.take(stream, {bytes.data(), static_cast<std::size_t>(got)});
    total += static_cast<std::size_t>(got);
  }
}

bool Supervisor::print() {
  const bool progress = output_.write_some();
  if (output_.out_failure() != 0 && !interrupted_) interrupt(SIGPIPE, SIGTERM);
  return progress;
}

void Supervisor::send(int signal) {
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    workers_[rank].process.signal(signal);
    was_told_[rank] = true;
  }
}

void Supervisor::print_while(const std::function<bool()>& wanted, bool waits) {
  auto give_up = Clock::now() + kPatience;
  while (wanted()) {
    std::array<pollfd, 2> polled = {
        {{signals_.descriptor(), POLLIN, 0}, {output_.next_descriptor(), POLLOUT, 0}}};
    const auto now = Clock::now();
    const int limit = hurried_ || !waits ? 0 : interrupted_ ? milliseconds_until(give_up, now) : -1;
    if (poll(polled.data(), polled.size(), limit) < 0) continue;
    if (polled[0].revents != 0 && take_signals()) hurried_ = true;
    const bool progress = polled[1].revents != 0 && print();
    if (progress || !interrupted_) give_up = Clock::now() + kPatience;
    if (!progress && (hurried_ || !waits || Clock::now() >= give_up)) return;
  }
}

}  // namespace tutti::command
