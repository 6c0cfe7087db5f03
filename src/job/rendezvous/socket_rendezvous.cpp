#include "job/rendezvous/socket_rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "base/helper_thread.h"
#include "base/process_mark.h"
#include "job/life/stop_request.h"
#include "job/rendezvous/gather_table.h"
#include "job/rendezvous/patient_wait.h"
#include "job/wire/frame.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// How long the broker may take to name the missing workers, once this worker has abandoned its
/// wait.
constexpr std::chrono::seconds kAnswer{5};
constexpr std::chrono::milliseconds kBlame{500};
constexpr std::chrono::milliseconds kCrowdedPause{2};
constexpr int kPollMs = 50;
/// What others wait for must not stay behind in a queue that nobody serves.
constexpr Deadline kUntilItIsGone{Clock::time_point::max()};

/// Runs in a thread of its own, at any moment: no allocation, no destructors.
[[noreturn]] void end_without_launcher(int rank) {
  char line[96];
  const auto end =
      fmt::format_to_n(line, sizeof line, "tutti [rank {}] error: the launcher is gone\n", rank);
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, line, static_cast<std::size_t>(end.out - line));
  ::_exit(kLauncherGoneStatus);
}

class SocketRendezvous final : public Rendezvous {
 public:
  /// `without_broker`: the launcher that has none, so that rank `serving` has it; empty for
  /// `tutti run`.
  SocketRendezvous(FileDescriptor socket, int rank, int size, std::string without_broker,
                   int serving)
      : socket_(std::move(socket)),
        stop_("cannot watch the launcher"),
        rank_(rank),
        size_(size),
        without_broker_(std::move(without_broker)),
        serving_(serving) {
    listener_ = start_helper_thread("tutti-join", [this] { listen(); });
  }

  ~SocketRendezvous() override {
    if (!process_.is_own()) {
      // A child that was made by fork without exec has no such thread.
      new (std::nothrow) std::thread(std::move(listener_));
      return;
    }
    stop_.raise();
    listener_.join();
  }

  using Rendezvous::all_gather;
  std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks, Parcel mine,
                                 Deadline deadline, const Patience& patience) override;

  void report_end(int rank) noexcept override try {
    FrameHeader header;
    header.kind = FrameHeader::ended;
    header.number = rank;
    send(header, {}, nullptr, {Clock::now() + kAnswer});
  } catch (...) {  // without memory the deadline ends the wait
  }

  void blame(int culprit, const std::string& text) noexcept override try {
    FrameHeader header;
    header.kind = FrameHeader::blame;
    header.number = culprit;
    send(header, text.substr(0, kMaxFrameText), nullptr, {Clock::now() + kBlame});
  } catch (...) {  // it is only a hint
  }

  void note_saves() noexcept override try {
    FrameHeader header;
    header.kind = FrameHeader::saves;
    send(header, {}, nullptr, {Clock::now() + kAnswer});
  } catch (...) {  // then it has the time of the others
  }

  void hold_block(std::uint64_t block, const FileDescriptor& file, std::size_t bytes) override {
    FrameHeader header;
    header.kind = FrameHeader::hold;
    header.request = block;
    header.extent = bytes;
    Parcel parcel;
    if (file) parcel.descriptors.push_back(file.duplicate());
    send(header, {}, std::make_shared<const Parcel>(std::move(parcel)), kUntilItIsGone);
  }

  void let_go_block(std::uint64_t block) noexcept override try {
    FrameHeader header;
    header.kind = FrameHeader::let_go;
    header.request = block;
    send(header, {}, nullptr, {Clock::now() + kAnswer});
  } catch (...) {  // the block stays mapped there until this worker ends
  }

  void store(std::string message, const Haste& haste) override {
    FrameHeader header;
    header.kind = FrameHeader::store;
    header.haste = haste.kind;
    header.extent = haste.round;
    header.ranks = haste.members.words();
    send(header, {}, std::make_shared<const Parcel>(Parcel{std::move(message), {}}),
         kUntilItIsGone);
  }

  bool reaches_hosts() const override { return !broker_is_gone_; }

  void when_alone(std::function<void()> told) override {
    const std::lock_guard lock(telling_);
    when_alone_ = std::move(told);
    if (broker_is_gone_ && when_alone_) when_alone_();
  }

 private:
  struct Answer {
    GatherOutcome outcome;
    std::vector<Parcel> parcels;
    bool complete = false;  ///< all is there, good or bad
  };

  void listen();
  void hang_up();
  void hear_no_more(const char* why);
  void take(Frame frame);
  bool send(const FrameHeader& header, std::string text,
            const std::shared_ptr<const Parcel>& parcel, Deadline deadline);
  bool wait_for(std::unique_lock<std::mutex>& lock, const Answer& answer, Deadline deadline,
                const Patience& patience);

  FileDescriptor socket_;
  StopRequest stop_;
  int rank_;
  int size_;
  std::string without_broker_;
  int serving_;  ///< the rank that has the broker then
  std::atomic<bool> broker_is_gone_{false};
  std::mutex telling_;
  std::function<void()> when_alone_;  ///< guarded by telling_
  ProcessMark process_;
  std::mutex sending_;
  FrameWriter writer_;  ///< guarded by sending_
  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<std::uint64_t, Answer*> open_;  ///< by request; guarded by mutex_
  std::string broken_;                     ///< why nothing can be received; guarded by mutex_
  std::uint64_t requests_ = 0;
  std::thread listener_;
};

void SocketRendezvous::listen() {
  FrameReader reader;
  pollfd polled[2] = {{socket_.get(), POLLIN, 0}, {stop_.descriptor(), POLLIN, 0}};
  while (true) {
    const int found = ::poll(polled, 2, StopRequest::kLook.count());
    if (stop_.raised()) return;
    if (!stop_.is_open()) {
      hear_no_more(
          "the program has closed descriptors of Tutti, as closefrom(3) does: this worker does not "
          "reach the others any more");
      return;
    }
    if (found <= 0) continue;
    const bool deaf = polled[0].events == 0;  // then only a hang-up is reported
    FrameStatus status = deaf ? FrameStatus::closed : FrameStatus::done;
    while (status == FrameStatus::done) {
      Frame frame;
      status = reader.read(socket_.get(), frame);
      if (status == FrameStatus::done) take(std::move(frame));
    }
    if (status == FrameStatus::closed) {
      hang_up();
      return;
    }
    if (status == FrameStatus::again) continue;
    polled[0].events = 0;
    hear_no_more(status == FrameStatus::descriptors
                     ? "too few file descriptors are left to receive those of other workers; raise "
                       "`ulimit -n`"
                     : "the launcher speaks another language: is it of another version of Tutti?");
  }
}

void SocketRendezvous::hear_no_more(const char* why) {
  const std::lock_guard lock(mutex_);
  broken_ = why;
  answered_.notify_all();
}

void SocketRendezvous::hang_up() {
  if (without_broker_.empty()) end_without_launcher(rank_);
  {
    const std::lock_guard lock(mutex_);
    broker_is_gone_ = true;
    answered_.notify_all();
  }
  const std::lock_guard lock(telling_);
  if (when_alone_) when_alone_();
}

void SocketRendezvous::take(Frame frame) {
  const std::lock_guard lock(mutex_);
  if (frame.header.kind == FrameHeader::broken) {
    broken_ = std::move(frame.text);
    answered_.notify_all();
    return;
  }
  const auto found = open_.find(frame.header.request);
  if (found == open_.end()) return;  // given up, and forgotten
  Answer& answer = *found->second;
  if (frame.header.kind == FrameHeader::parcel) {
    answer.parcels.push_back(std::move(frame.parcel));
    answer.complete = static_cast<int>(answer.parcels.size()) == frame.header.total;
  } else {
    answer.outcome.kind = frame.header.kind == FrameHeader::lost ? GatherOutcome::Kind::lost
                                                                 : GatherOutcome::Kind::timed_out;
    answer.outcome.culprit = frame.header.number;
    answer.outcome.text = std::move(frame.text);
    answer.complete = true;
  }
  if (answer.complete) answered_.notify_all();
}

bool SocketRendezvous::send(const FrameHeader& header, std::string text,
                            const std::shared_ptr<const Parcel>& parcel, Deadline deadline) {
  if (!process_.is_own()) return false;  // a child made by fork does not speak for the worker
  const std::lock_guard lock(sending_);
  // A frame that is not sent in time stays queued: half a frame would break the connection.
  writer_.push(header, std::move(text), parcel.get(), parcel);
  while (true) {
    // Else the number may belong to a file of the program.
    if (!stop_.is_open()) return false;
    const FrameStatus status = writer_.write(socket_.get());
    if (status == FrameStatus::done) return true;
    if (broker_is_gone_ || Clock::now() >= deadline.at) return false;
    if (status == FrameStatus::again) {
      pollfd polled{socket_.get(), POLLOUT, 0};
      ::poll(&polled, 1, kPollMs);
    } else {
      // Too many descriptors on their way, or the launcher is gone and listen() ends this process.
      std::this_thread::sleep_for(kCrowdedPause);
    }
  }
}

bool SocketRendezvous::wait_for(std::unique_lock<std::mutex>& lock, const Answer& answer,
                                Deadline deadline, const Patience& patience) {
  const auto over = [&] { return answer.complete || !broken_.empty() || broker_is_gone_; };
  return wait_patiently(lock, answered_, over, deadline, patience);
}

std::vector<Parcel> SocketRendezvous::all_gather(const std::string& tag,
                                                 const std::vector<int>& ranks, Parcel mine,
                                                 Deadline deadline, const Patience& patience) {
  TUTTI_CHECK(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end() &&
                  (RankSet::of(ranks) - RankSet::below(size_)).empty(),
              "rank {} gathers \"{}\" among wrong ranks", rank_, tag);
  if (tag.size() > kMaxFrameText || mine.bytes.size() > kMaxFrameBytes ||
      mine.descriptors.size() > kMaxFrameDescriptors)
    throw InvalidArgument(fmt::format("a parcel of {} bytes and {} descriptors is too large",
                                      mine.bytes.size(), mine.descriptors.size()));
  Answer answer;
  FrameHeader header;
  header.kind = FrameHeader::give;
  header.ranks = RankSet::of(ranks).words();
  {
    const std::lock_guard lock(mutex_);
    header.request = ++requests_;
    open_[header.request] = &answer;
  }
  const bool sent = send(header, tag, std::make_shared<const Parcel>(std::move(mine)), deadline);
  std::unique_lock lock(mutex_);
  const bool gave_up = !sent || !wait_for(lock, answer, deadline, patience);
  if (gave_up) {
    lock.unlock();
    header.kind = FrameHeader::give_up;
    const Deadline last{Clock::now() + kAnswer};
    send(header, {}, nullptr, last);
    lock.lock();
    wait_for(lock, answer, last, {});
  }
  open_.erase(header.request);
  if (!answer.complete && !broken_.empty()) throw Error(broken_);
  if (!answer.complete && broker_is_gone_)
    throw PeerLost(serving_,
                   fmt::format("rank {} has ended, through which the workers that {} has started "
                               "find one another: \"{}\" cannot be made any more",
                               serving_, without_broker_, tag));
  if (!answer.complete)
    throw Timeout(
        fmt::format("the launcher did not answer when rank {} asked for \"{}\"", rank_, tag));
  if (answer.parcels.empty()) {
    lock.unlock();
    // A rank whose own patience ended has a reason of its own.
    const bool is_own_reason = gave_up && patience;
    if (answer.outcome.kind == GatherOutcome::Kind::timed_out && answer.outcome.culprit >= 0 &&
        answer.outcome.culprit != rank_ && !is_own_reason) {
      blame(answer.outcome.culprit, answer.outcome.text);
    }
    throw_failure(answer.outcome);
  }
  return std::move(answer.parcels);
}

}  // namespace

void require_own_stream(int socket) {
  if (!is_own_stream(socket))
    throw InvalidArgument(
        fmt::format("descriptor {} is no socket to a launcher of the same user", socket));
}

std::unique_ptr<Rendezvous> connect_to_broker(FileDescriptor socket, int rank, int size) {
  require_own_stream(socket.get());
  return std::make_unique<SocketRendezvous>(std::move(socket), rank, size, "", -1);
}

std::unique_ptr<Rendezvous> connect_to_first(FileDescriptor socket, const std::string& launcher,
                                             int first, int rank, int size) {
  return std::make_unique<SocketRendezvous>(std::move(socket), rank, size, launcher, first);
}

}  // namespace tutti
