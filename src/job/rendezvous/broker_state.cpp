#include "job/rendezvous/broker_state.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/helper_thread.h"

namespace tutti {
namespace {

/// Delay before the next attempt when the kernel holds too many descriptors in flight.
constexpr int kCrowdedPollMs = 2;
constexpr std::chrono::seconds kLastAnswers{1};

}  // namespace

void BrokerState::start() {
  thread = start_helper_thread("tutti-broker", [this] { run(); });
}

/// What to poll: first the request to stop, then the listener and all sockets.
std::vector<pollfd> BrokerState::polled(int& timeout_ms) const {
  std::vector<pollfd> all{{stop->descriptor(), static_cast<short>(stopping ? 0 : POLLIN), 0}};
  order.add_polled(all, timeout_ms);
  if (listener) all.push_back({listener.get(), POLLIN, 0});
  for (const auto* group : {&lines, &strangers}) {
    for (const Line& line : *group) {
      if (!line.socket) continue;
      const bool write = !line.writer.empty() && !line.crowded;
      all.push_back({line.socket.get(), static_cast<short>(write ? POLLIN | POLLOUT : POLLIN), 0});
      if (line.crowded) timeout_ms = kCrowdedPollMs;
    }
  }
  return all;
}

/// Polls; what has to be done is found out by trying, so that a stale answer does no harm.
void BrokerState::run() {
  while (true) {
    std::vector<pollfd> all;
    int timeout_ms = static_cast<int>(StopRequest::kLook.count());
    {
      const std::lock_guard lock(mutex);
      all = polled(timeout_ms);
    }
    if (::poll(all.data(), all.size(), timeout_ms) < 0) continue;
    const std::lock_guard lock(mutex);
    if (!stopping && stop->raised()) stopping = true;
    if (!stopping || !order.is_alone()) serve();
    if (stopping && is_through()) break;
  }
  answer_last();
}

/// True when a broker that is asked to stop may do so. Other hosts rely on it for as long as one of
/// its workers lives, and on the hub for as long as there is another host.
bool BrokerState::is_through() const {
  if (order.is_alone()) return true;
  const bool has_worker =
      std::any_of(lines.begin(), lines.end(), [](const Line& line) { return bool(line.socket); });
  return !has_worker && !order.has_more() && (order.here() != 0 || !order.is_connected());
}

void BrokerState::answer_last() {
  const auto until = Clock::now() + kLastAnswers;
  const std::lock_guard lock(mutex);
  const auto has_more = [](const Line& line) { return line.socket && !line.writer.empty(); };
  while (std::any_of(lines.begin(), lines.end(), has_more) && Clock::now() < until) {
    ::poll(nullptr, 0, kCrowdedPollMs);
    for (Line& line : lines) {
      if (has_more(line) && line.writer.write(line.socket.get()) == FrameStatus::closed) {
        line.socket.reset();
      }
    }
  }
}

void BrokerState::serve() {
  accept_strangers();
  for (int rank = 0; rank < static_cast<int>(lines.size()); ++rank) {
    if (line(rank).socket && !hear(rank)) end(rank);
    if (line(rank).socket) send(rank);
  }
  order.serve(Clock::now());
  if (order.has_lost_hub()) tell(table.cut_off());
  believe_reports();
  memory.wake();
}

/// Messages that a worker sent before it ended are in its socket by now, and count. The socket
/// stays open: this rank's last blames may be in flight, or the process still leaves in an orderly
/// way.
void BrokerState::believe_reports() {
  while (!reported.empty()) {
    const int rank = reported.first();
    reported -= {rank};
    if (line(rank).socket && !hear(rank)) end(rank);
    tell_end(rank);
  }
}

void BrokerState::tell_end(int rank) {
  Frame over;
  over.header.kind = FrameHeader::over;
  submit(rank, std::move(over));
}

/// A parcel has come without its descriptors: all that wait for it, now or later, wait in vain.
void BrokerState::break_down() {
  if (!broken.empty()) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  broken = fmt::format(
      "{} has too few file descriptors for {} workers: its limit is {}; raise `ulimit -n`",
      listener ? "rank 0" : "the launcher", lines.size(), limit.rlim_cur);
  for (int rank = 0; rank < static_cast<int>(lines.size()); ++rank) {
    if (!line(rank).socket) continue;
    FrameHeader header;
    header.kind = FrameHeader::broken;
    line(rank).writer.push(header, broken, nullptr, nullptr);
    send(rank);
  }
}

/// False when the worker has ended, or should have.
bool BrokerState::hear(int rank) {
  while (true) {
    Frame frame;
    switch (line(rank).reader.read(line(rank).socket.get(), frame)) {
      case FrameStatus::done:
        if (!obey(rank, std::move(frame))) return false;
        break;
      case FrameStatus::descriptors:
        break_down();
        break;
      case FrameStatus::again:
        return true;
      default:
        return false;
    }
  }
}

bool BrokerState::obey(int rank, Frame frame) {
  const FrameHeader& header = frame.header;
  const int size = static_cast<int>(lines.size());
  switch (header.kind) {
    case FrameHeader::give: {
      const RankSet ranks(header.ranks);
      if (!(ranks - RankSet::below(size)).empty() || !ranks.contains(rank)) return false;
      any_gave = true;
      break;
    }
    case FrameHeader::give_up:
    case FrameHeader::store:
      break;
    case FrameHeader::blame:
      if (header.number < 0 || header.number >= size) return false;
      break;
    case FrameHeader::ended:
      if (header.number < 0 || header.number >= size) return false;
      if (is_here(header.number)) reported.insert(header.number);
      return true;
    case FrameHeader::saves:
      any_saves = true;
      return true;
    case FrameHeader::hold: {
      const auto& files = frame.parcel.descriptors;
      memory.hold(rank, header.request, files.empty() ? FileDescriptor() : files[0].duplicate(),
                  header.extent);
      return true;
    }
    case FrameHeader::let_go:
      memory.let_go(rank, header.request);
      return true;
    default:
      return false;
  }
  submit(rank, std::move(frame));
  return true;
}

/// Descriptors stay here until the frame is in order.
void BrokerState::submit(int rank, Frame frame) {
  frame.header.origin = rank;
  if (!frame.parcel.descriptors.empty()) {
    kept[{rank, frame.header.request}] = std::move(frame.parcel.descriptors);
    frame.parcel.descriptors.clear();
  }
  order.submit(std::move(frame));
}

/// What has been checked by the broker of its worker, in the order in which all brokers do it.
void BrokerState::obey_ordered(Frame frame) {
  const FrameHeader& header = frame.header;
  const int rank = header.origin;
  switch (header.kind) {
    case FrameHeader::give: {
      if (const auto mine = kept.extract({rank, header.request})) {
        frame.parcel.descriptors = std::move(mine.mapped());
      }
      tell(table.give(rank, header.request, frame.text, RankSet(header.ranks),
                      std::move(frame.parcel)));
      return;
    }
    case FrameHeader::give_up:
      return tell(table.give_up(rank, header.request));
    case FrameHeader::blame:
      blames.push_back({rank, header.number, std::move(frame.text)});
      return;
    case FrameHeader::store:
      return memory.apply(frame.parcel.bytes, is_here(rank));
    case FrameHeader::over:
      memory.end(rank, order.has_lost_hub());
      return tell(table.end(rank));
    default:
      return;
  }
}

void BrokerState::tell(std::vector<GatherOutcome> outcomes) {
  for (GatherOutcome& outcome : outcomes) {
    if (!line(outcome.rank).socket) continue;
    FrameWriter& writer = line(outcome.rank).writer;
    FrameHeader header;
    header.request = outcome.request;
    if (outcome.parcels) {
      header.kind = FrameHeader::parcel;
      header.total = static_cast<std::int32_t>(outcome.parcels->size());
      for (const Parcel& parcel : *outcome.parcels) {
        writer.push(header, {}, &parcel, outcome.parcels);
        ++header.number;
      }
    } else {
      header.kind =
          outcome.kind == GatherOutcome::Kind::lost ? FrameHeader::lost : FrameHeader::timed_out;
      header.number = outcome.culprit;
      outcome.text.resize(std::min(outcome.text.size(), kMaxFrameText));
      writer.push(header, std::move(outcome.text), nullptr, nullptr);
    }
    send(outcome.rank);
  }
}

void BrokerState::send(int rank) {
  // A worker that hung up is noticed by reading, after all it said was heard.
  line(rank).crowded = line(rank).writer.write(line(rank).socket.get()) == FrameStatus::crowded;
}

void BrokerState::end(int rank) {
  line(rank).socket.reset();
  line(rank).writer = {};
  line(rank).crowded = false;
  tell_end(rank);
}

}  // namespace tutti
