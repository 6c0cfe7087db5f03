#include "job/hosts/hub_join.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/run_identity.h"
#include "job/hosts/tcp_socket.h"
#include "job/wire/frame.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{50};
/// How long a connection may take to prove that it belongs here.
constexpr std::chrono::seconds kStrangerPatience{5};
/// More than these at a time: the oldest is hung up on.
constexpr std::size_t kMaxStrangers = 256;
/// How often hosts are told who is missing.
constexpr milliseconds kWaitingNews{200};
/// How long hosts that come after a failure are still told of it.
constexpr std::chrono::seconds kLinger{2};
constexpr milliseconds kLastWords{200};
constexpr std::size_t kMaxRefusals = 4;
// A guest is heard before so many others are accepted that it would be hung up on as the oldest.
static_assert(kMaxAccepted < static_cast<int>(kMaxStrangers));

}  // namespace

HubJoin::HubJoin(const FileDescriptor& listener, std::string address, const HostIntroduction& own,
                 Deadline deadline, const Patience& patience)
    : listener_(listener),
      address_(std::move(address)),
      own_(own),
      run_(own.run.empty() ? draw_run_identity() : own.run),
      deadline_(deadline),
      patience_(patience),
      there_(RankSet::of(own.ranks)) {}

ConnectedHosts HubJoin::run() {
  while (!verdict_ && there_ != RankSet::below(own_.size)) {
    serve(deadline_.at);
    if (Clock::now() >= deadline_.at || (patience_ && !patience_())) time_out("");
    tell_who_is_missing();
  }
  if (verdict_) fail();
  return finish();
}

/// Polls; what has to be done is found out by trying.
void HubJoin::serve(Clock::time_point until) {
  std::vector<pollfd> polled;
  if (!no_descriptors_) polled.push_back({listener_.get(), POLLIN, 0});
  no_descriptors_ = false;
  for (const Guest& guest : guests_) {
    const bool write = guest.channel.has_unsent();
    polled.push_back(
        {guest.channel.socket(), static_cast<short>(write ? POLLIN | POLLOUT : POLLIN), 0});
  }
  const auto left =
      std::clamp(std::chrono::ceil<milliseconds>(until - Clock::now()), milliseconds(0), kTick);
  ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
  accept();
  for (Guest& guest : guests_) hear(guest);
  for (Guest& guest : guests_)
    if (!guest.over) guest.channel.write();
  const auto now = Clock::now();
  std::erase_if(guests_, [&](const Guest& guest) {
    return guest.over || (!guest.host && now - guest.came > kStrangerPatience);
  });
}

/// Accepts a bounded number of the connections that wait, so that hosts are heard and the deadline
/// is looked at in between, however many come.
void HubJoin::accept() {
  const auto is_stranger = [](const Guest& guest) { return !guest.host; };
  for (int accepted = 0; accepted < kMaxAccepted; ++accepted) {
    TcpAddress from;
    FileDescriptor socket = accept_from(listener_, from);
    if (!socket && errno == ECONNABORTED) continue;
    // Without room for one more, those that have said nothing for longest give theirs up.
    const bool full = !socket && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
    if (full ||
        std::ranges::count_if(guests_, is_stranger) > static_cast<std::ptrdiff_t>(kMaxStrangers)) {
      const auto oldest = std::ranges::find_if(guests_, is_stranger);
      no_descriptors_ = full && oldest == guests_.end();
      if (oldest != guests_.end()) guests_.erase(oldest);
      if (full && !no_descriptors_) continue;
    }
    if (!socket) return;
    guests_.push_back({SignedChannel(std::move(socket), SignedChannel::Side::hub, own_.token),
                       from.text(), Clock::now()});
  }
}

void HubJoin::hear(Guest& guest) {
  using Status = SignedChannel::Status;
  while (!guest.over) {
    SignedMessage message;
    switch (guest.channel.read(message)) {
      case Status::done:
        obey(guest, message);
        break;
      case Status::again:
        return;
      case Status::other_token:
        refuse(guest, "has another token");
        break;
      case Status::other_version:
        refuse(guest, "has a version of Tutti that joins otherwise");
        break;
      default:
        end(guest);
    }
  }
}

void HubJoin::obey(Guest& guest, const SignedMessage& message) {
  const auto kind = static_cast<HostMessage>(message.kind);
  if (!guest.host && kind == HostMessage::introduction) {
    if (auto said = read_introduction(message.content)) {
      introduce(guest, std::move(*said));
      return;
    }
    refuse(guest, "introduces itself in a way that makes no sense");
  } else if (guest.host && kind == HostMessage::gave_up) {
    time_out(fmt::format("{} gave up: ", text_of(*guest.host)));
  } else {
    end(guest);
  }
}

void HubJoin::introduce(Guest& guest, HostIntroduction said) {
  using Kind = HostVerdict::Kind;
  const auto who = text_of(said);
  if (!said.run.empty() && said.run != run_) {
    turn_away(guest,
              {Kind::mismatch, 0,
               fmt::format("two jobs use {}: the hub {} belongs to run {}, {} to run {}", address_,
                           text_of(own_), run_, who, said.run)},
              fmt::format("is {} of run {}", who, said.run));
  } else if (said.attempt != own_.attempt) {
    turn_away(guest,
              {said.attempt > own_.attempt ? Kind::later : Kind::mismatch, 0,
               fmt::format("the hub {} is at attempt {}, {} at attempt {}", text_of(own_),
                           own_.attempt, who, said.attempt)},
              fmt::format("is {} of attempt {}", who, said.attempt));
  } else {
    guest.host = std::move(said);
    if (!verdict_) compare(guest);
    if (verdict_) decide(*verdict_);
  }
}

/// What differs between two hosts of one job has to be put right by the user: nobody continues.
void HubJoin::compare(const Guest& guest) {
  const HostIntroduction& host = *guest.host;
  const auto mismatch = [&](const std::string& text) {
    decide({HostVerdict::Kind::mismatch, 0, text});
  };
  if (host.size != own_.size) {
    mismatch(fmt::format("{} was started for a job of {} workers, {} for one of {}", text_of(own_),
                         own_.size, text_of(host), host.size));
    return;
  }
  if (host.facts != own_.facts) {
    mismatch(fmt::format("hosts differ: {} has \"{}\", {} has \"{}\"", text_of(own_), own_.facts,
                         text_of(host), host.facts));
    return;
  }
  const RankSet ranks = RankSet::of(host.ranks);
  const RankSet twice = ranks & there_;
  if (!twice.empty()) {
    std::string other = text_of(own_);
    for (const Guest& each : guests_) {
      if (&each != &guest && each.host && !(RankSet::of(each.host->ranks) & twice).empty())
        other = text_of(*each.host);
    }
    mismatch(fmt::format("{} on two hosts: {} and {}", ranks_text(twice, "is", "are"), other,
                         text_of(host)));
    return;
  }
  there_ |= ranks;
  news_ = true;
}

void HubJoin::turn_away(Guest& guest, const HostVerdict& verdict, const std::string& reason) {
  guest.channel.push(static_cast<std::uint32_t>(HostMessage::failed), bytes_of(verdict));
  guest.channel.write();
  refuse(guest, reason);
}

void HubJoin::refuse(Guest& guest, const std::string& reason) {
  guest.over = true;
  // One refusal tells enough of several connections of one kind.
  const auto text = fmt::format("{} {}", guest.from.substr(0, guest.from.rfind(':')), reason);
  if (refusals_.size() < kMaxRefusals && std::ranges::find(refusals_, text) == refusals_.end())
    refusals_.push_back(text);
}

void HubJoin::end(Guest& guest) {
  guest.over = true;
  if (!guest.host || verdict_) return;
  decide({HostVerdict::Kind::lost, guest.host->ranks.front(),
          fmt::format("host {} ended while the hosts of the job joined", text_of(*guest.host))});
}

/// All hosts that are there, now or later, are told.
void HubJoin::decide(HostVerdict verdict) {
  verdict_ = std::move(verdict);
  for (Guest& guest : guests_) {
    if (!guest.host || guest.over || guest.told) continue;
    guest.told = true;
    told_ |= RankSet::of(guest.host->ranks);
    guest.channel.push(static_cast<std::uint32_t>(HostMessage::failed), bytes_of(*verdict_));
  }
}

void HubJoin::time_out(const std::string& because) {
  if (verdict_) return;
  decide({HostVerdict::Kind::timeout, 0,
          fmt::format("{}not all hosts have come to the hub at {} within {}: {}", because, address_,
                      seconds_text(Clock::now() - begin_), missing())});
}

std::string HubJoin::missing() const {
  std::vector<std::string> hosts{text_of(own_)};
  for (const Guest& guest : guests_)
    if (guest.host && !guest.over) hosts.push_back(text_of(*guest.host));
  auto text =
      fmt::format("{} of {} missing; there: {}", ranks_text(RankSet::below(own_.size) - there_),
                  own_.size, fmt::join(hosts, ", "));
  if (!refusals_.empty()) text += fmt::format("; turned away: {}", fmt::join(refusals_, ", "));
  if (own_address(listener_).is_loopback())
    text += "; the hub listens where only processes of its own host reach it";
  return text;
}

void HubJoin::tell_who_is_missing() {
  const auto now = Clock::now();
  if (!news_ || verdict_ || now < next_news_) return;
  news_ = false;
  next_news_ = now + kWaitingNews;
  for (Guest& guest : guests_) {
    if (guest.host) guest.channel.push(static_cast<std::uint32_t>(HostMessage::waiting), missing());
  }
}

bool HubJoin::has_unsent() const {
  return std::ranges::any_of(guests_, [](const Guest& guest) {
    return guest.host && !guest.over && guest.channel.has_unsent();
  });
}

void HubJoin::fail() {
  const auto now = Clock::now();
  const auto last = std::max(std::min(now + kLinger, deadline_.at), now + kLastWords);
  const RankSet others = RankSet::below(own_.size) - RankSet::of(own_.ranks);
  const bool more_may_come = verdict_->kind != HostVerdict::Kind::timeout;
  while (((more_may_come && !(others - told_).empty()) || has_unsent()) && Clock::now() < last) {
    serve(last);
  }
  throw_verdict(*verdict_);
}

ConnectedHosts HubJoin::finish() {
  std::vector<Guest*> hosts;
  for (Guest& guest : guests_)
    if (guest.host) hosts.push_back(&guest);
  std::ranges::sort(hosts, {}, [](const Guest* guest) { return guest->host->ranks.front(); });
  HostList list{run_, {{own_.name, own_.ranks}}};
  for (const Guest* guest : hosts) list.hosts.push_back({guest->host->name, guest->host->ranks});
  for (Guest* guest : hosts) {
    guest->channel.push(static_cast<std::uint32_t>(HostMessage::joined), bytes_of(list));
    guest->channel.write();
  }
  // Nothing is read any more: what hosts say from now on is not for the join.
  const auto until = Clock::now() + kLinger;
  ConnectedHosts connected{run_, {}};
  connected.hosts.push_back({{}, own_.name, own_.ranks});
  for (Guest* guest : hosts) {
    while (guest->channel.has_unsent() && Clock::now() < until) {
      pollfd polled{guest->channel.socket(), POLLOUT, 0};
      ::poll(&polled, 1, static_cast<int>(kTick.count()));
      if (guest->channel.write() == SignedChannel::Status::closed) break;
    }
    connected.hosts.push_back({guest->channel.release(), guest->host->name, guest->host->ranks});
  }
  return connected;
}

}  // namespace tutti
