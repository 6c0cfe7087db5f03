#include "job/hosts/host_order.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tutti {
namespace {

/// A broker that was not served for this long has been stopped, or had no processor: the silence of
/// others in that time tells nothing.
constexpr std::chrono::milliseconds kStoppedFor{500};

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
    push(lines_[0], unconfirmed_.back());
    send(0, Clock::now());
  } else {
    sequence(std::move(frame));
  }
}

void HostOrder::sequence(Frame frame, int keeper) {
  const auto all = std::make_shared<const Frame>(
      Frame{frame.header, std::move(frame.text), {std::move(frame.parcel.bytes), {}}});
  for (std::size_t host = 0; host < lines_.size(); ++host) {
    if (!lines_[host].socket) continue;
    if (static_cast<int>(host) != keeper) {
      push(lines_[host], all);
      continue;
    }
    FrameHeader yours;
    yours.kind = FrameHeader::yours;
    yours.origin = all->header.origin;
    lines_[host].writer.push(yours, {}, nullptr, nullptr);
  }
  obey_({all->header, all->text, {all->parcel.bytes, std::move(frame.parcel.descriptors)}});
}

void HostOrder::push(Line& line, const std::shared_ptr<const Frame>& frame) {
  line.writer.push(frame->header, frame->text, &frame->parcel, frame);
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
      line.writer.push(beat, {}, nullptr, nullptr);
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
  if (header.kind == FrameHeader::yours) return obey_own(header.origin);
  if (map_.host_of(header.origin) == here_) return false;
  obey_(std::move(frame));
  return true;
}

/// The frame that this host submitted first of those that were not in order.
bool HostOrder::obey_own(int origin) {
  if (unconfirmed_.empty() || unconfirmed_.front()->header.origin != origin) return false;
  // The hub cannot have all of a frame that is still being sent.
  if (unconfirmed_.front().use_count() > 1) return false;
  const auto next = std::move(unconfirmed_.front());
  unconfirmed_.pop_front();
  obey_(std::move(*next));
  return true;
}

void HostOrder::send(int host, Clock::time_point now) {
  Line& line = lines_[static_cast<std::size_t>(host)];
  const bool had = !line.writer.empty();
  // A broker that hung up is noticed by reading, after all it said was heard.
  line.writer.write(line.socket.get());
  if (had && line.writer.empty()) line.sent = now;
}

void HostOrder::lose(int host) {
  Line& line = lines_[static_cast<std::size_t>(host)];
  line.socket.reset();
  line.writer = {};
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
  for (const Line& line : lines_) {
    if (!line.socket) continue;
    const auto events = static_cast<short>(line.writer.empty() ? POLLIN : POLLIN | POLLOUT);
    polled.push_back({line.socket.get(), events, 0});
    const int beat = static_cast<int>(kHostBeat.count() / 2);
    timeout_ms = timeout_ms < 0 ? beat : std::min(timeout_ms, beat);
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
