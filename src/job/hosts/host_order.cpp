#include "job/hosts/host_order.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tutti {
namespace {

/// A broker that was not served for this long has been stopped, or had no processor: the silence of
/// others in that time tells nothing.
constexpr std::chrono::milliseconds kStoppedFor{500};
/// More than this does not wait for company.
constexpr std::size_t kMostHeld = std::size_t{256} << 10;
/// Rounds that failed never end. Forgotten ones end their waits by time alone.
constexpr std::size_t kMostRounds = 1024;

}  // namespace

HostOrder::HostOrder(BrokerHosts hosts, Obey obey)
    : map_(std::move(hosts.map)),
      run_(std::move(hosts.run)),
      here_(hosts.here),
      obey_(std::move(obey)),
      served_(Clock::now()) {
  if (map_.hosts() == 1) return;
  lines_.resize(static_cast<std::size_t>(map_.hosts()));
  for (std::size_t host = 0; host < lines_.size(); ++host) {
    lines_[host].socket = std::move(hosts.connections.at(host));
    lines_[host].heard = lines_[host].sent = served_;
    const bool needed = is_hub() ? static_cast<int>(host) != here_ : host == 0;
    TUTTI_CHECK(bool(lines_[host].socket) == needed, "host {} {} connected to host {}", here_,
                needed ? "is not" : "is", host);
  }
}

void HostOrder::submit(Frame frame) {
  if (!is_hub() && lines_[0].socket) {
    unconfirmed_.push_back(std::make_shared<Frame>(std::move(frame)));
    const auto& header = unconfirmed_.back()->header;
    push(lines_[0], header, unconfirmed_.back(), ends_wait(header));
    send(0, Clock::now());
  } else {
    sequence(std::move(frame));
  }
}

void HostOrder::sequence(Frame frame, int keeper) {
  const auto all = std::make_shared<const Frame>(
      Frame{frame.header, std::move(frame.text), {std::move(frame.parcel.bytes), {}}});
  const bool is_due = ends_wait(all->header);
  for (std::size_t host = 0; host < lines_.size(); ++host) {
    if (!lines_[host].socket) continue;
    if (static_cast<int>(host) == keeper) {
      confirm(lines_[host], all->header.origin, is_due);
    } else {
      push(lines_[host], all->header, all, is_due);
    }
  }
  obey_({all->header, all->text, {all->parcel.bytes, std::move(frame.parcel.descriptors)}});
}

bool HostOrder::ends_wait(const FrameHeader& header) {
  if (header.kind != FrameHeader::store || header.haste == Haste::at_once) return true;
  if (header.haste == Haste::with_next) return false;
  if (rounds_.size() > kMostRounds) rounds_.clear();
  RankSet& there = rounds_[header.extent];
  there.insert(header.origin);
  RankSet members(header.ranks);
  if (!is_hub()) members &= map_.ranks_of(here_);
  if (!(members - there).empty()) return false;
  rounds_.erase(header.extent);
  return true;
}

void HostOrder::push(Line& line, FrameHeader header, const std::shared_ptr<const Frame>& frame,
                     bool is_due) {
  if (line.writer.empty()) line.held = Clock::now();
  line.is_due = line.is_due || is_due;
  line.beats = header.kind == FrameHeader::beat && line.writer.empty();
  if (frame) {
    line.writer.push(header, frame->text, &frame->parcel, frame);
  } else {
    line.writer.push(header, {}, nullptr, nullptr);
  }
  if (header.kind != FrameHeader::beat) ++traffic_.frames;
}

/// Confirmations that follow one another are one frame.
void HostOrder::confirm(Line& line, int origin, bool is_due) {
  if (auto* const last = line.writer.last(); last != nullptr && last->kind == FrameHeader::yours) {
    ++last->number;
    line.is_due = line.is_due || is_due;
    return;
  }
  FrameHeader yours;
  yours.kind = FrameHeader::yours;
  yours.origin = origin;
  push(line, yours, nullptr, is_due);
}

void HostOrder::serve(Clock::time_point now) {
  const bool was_stopped = now - std::exchange(served_, now) > kStoppedFor;
  for (int host = 0; host < static_cast<int>(lines_.size()); ++host) {
    Line& line = lines_[static_cast<std::size_t>(host)];
    if (!line.socket) continue;
    if (was_stopped) line.heard = now;
    hear(host, now);
    if (line.socket && now - line.heard > kHostSilence) lose(host);
  }
  for (int host = 0; host < static_cast<int>(lines_.size()); ++host) {
    Line& line = lines_[static_cast<std::size_t>(host)];
    if (!line.socket) continue;
    if (line.writer.empty() && now - line.sent >= kHostBeat) {
      FrameHeader beat;
      beat.kind = FrameHeader::beat;
      push(line, beat, nullptr, true);
    }
    send(host, now);
  }
}

void HostOrder::hear(int host, Clock::time_point now) {
  Line& line = lines_[static_cast<std::size_t>(host)];
  while (line.socket) {
    Frame frame;
    const FrameStatus status = line.reader.read(line.socket.get(), frame);
    if (status == FrameStatus::again) return;
    if (status != FrameStatus::done || !take(host, std::move(frame))) return lose(host);
    line.heard = now;
  }
}

/// False when that is nothing a broker says.
bool HostOrder::take(int host, Frame frame) {
  const FrameHeader& header = frame.header;
  if (header.kind == FrameHeader::beat) return true;
  if (header.origin < 0 || header.origin >= map_.size()) return false;
  if (is_hub()) {
    if (!map_.ranks_of(host).contains(header.origin) || header.kind == FrameHeader::yours)
      return false;
    sequence(std::move(frame), host);
    return true;
  }
  if (header.kind == FrameHeader::yours) return obey_own(header.origin, header.number);
  if (map_.host_of(header.origin) == here_) return false;
  obey_(std::move(frame));
  return true;
}

/// The frames that this host submitted first of those that were not in order: one, and `more`.
bool HostOrder::obey_own(int origin, int more) {
  if (unconfirmed_.empty() || unconfirmed_.front()->header.origin != origin) return false;
  for (int left = more; left >= 0; --left) {
    // The hub cannot have all of a frame that is still being sent.
    if (unconfirmed_.empty() || unconfirmed_.front().use_count() > 1) return false;
    const auto next = std::move(unconfirmed_.front());
    unconfirmed_.pop_front();
    obey_(std::move(*next));
  }
  return true;
}

bool HostOrder::may_wait(const Line& line, Clock::time_point now) const {
  return !line.is_due && line.writer.bytes() <= kMostHeld && now - line.held < kHostCompany;
}

void HostOrder::send(int host, Clock::time_point now) {
  Line& line = lines_[static_cast<std::size_t>(host)];
  if (line.writer.empty() || may_wait(line, now)) return;
  line.is_due = true;
  const std::size_t before = line.writer.bytes();
  // A broker that hung up is noticed by reading, after all it said was heard.
  line.writer.write(line.socket.get());
  const auto writes = line.writer.writes() - std::exchange(line.counted, line.writer.writes());
  if (!line.beats) {
    traffic_.messages += writes;
    traffic_.bytes += before - line.writer.bytes();
  }
  if (!line.writer.empty()) return;
  line.is_due = false;
  line.sent = now;
}

void HostOrder::lose(int host) {
  Line& line = lines_[static_cast<std::size_t>(host)];
  line = {};
  const RankSet gone =
      is_hub() ? map_.ranks_of(host) : RankSet::below(map_.size()) - map_.ranks_of(here_);
  for (const int rank : gone.ranks()) {
    Frame over;
    over.header.kind = FrameHeader::over;
    over.header.origin = rank;
    sequence(std::move(over));
  }
  for (const auto& frame : std::exchange(unconfirmed_, {}))
    sequence(Frame{frame->header, frame->text, {frame->parcel.bytes, {}}});
}

void HostOrder::add_polled(std::vector<pollfd>& polled, int& timeout_ms) const {
  const auto now = Clock::now();
  for (const Line& line : lines_) {
    if (!line.socket) continue;
    const bool waits = !line.writer.empty() && may_wait(line, now);
    const bool writes = !line.writer.empty() && !waits;
    const auto events = static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN);
    polled.push_back({line.socket.get(), events, 0});
    auto most = kHostBeat / 2;
    if (waits) {
      most = std::min(most,
                      std::chrono::ceil<std::chrono::milliseconds>(line.held + kHostCompany - now));
    }
    const int most_ms = static_cast<int>(most.count());
    timeout_ms = timeout_ms < 0 ? most_ms : std::min(timeout_ms, most_ms);
  }
}

bool HostOrder::is_connected() const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return bool(line.socket); });
}

bool HostOrder::has_more() const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return line.socket && !line.writer.empty(); });
}

void HostOrder::close() {
  for (Line& line : lines_) line.socket.reset();
}

}  // namespace tutti
