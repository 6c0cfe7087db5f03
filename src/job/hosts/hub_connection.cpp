#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "base/file_descriptor.h"
#include "job/hosts/host_connections.h"
#include "job/hosts/host_messages.h"
#include "job/hosts/signed_channel.h"
#include "job/hosts/tcp_socket.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetryHub{50};
/// A network that loses what is sent to a host must not keep from its other addresses.
constexpr std::chrono::seconds kOneAttempt{5};

class HubSearch {
 public:
  HubSearch(const HubAddress& hub, const HostIntroduction& own, Deadline deadline,
            const Patience& patience)
      : hub_(hub),
        own_(own),
        deadline_(deadline),
        patience_(patience),
        where_(tcp_text(hub.address, hub.port)) {}

  ConnectedHosts run() {
    if (!hub_.from.empty()) from_ = resolve(hub_.from, 0, problem_);
    std::vector<TcpAddress> addresses;
    while (true) {
      if (addresses.empty()) addresses = resolve(hub_.address, hub_.port, problem_);
      for (const TcpAddress& to : addresses) {
        if (auto socket = connect(to)) {
          if (auto connected = join(std::move(socket))) return std::move(*connected);
        }
      }
      if (Clock::now() + kRetryHub >= deadline_.at || (patience_ && !patience_())) throw timeout();
      std::this_thread::sleep_for(kRetryHub);
    }
  }

 private:
  std::string own_text() const { return host_text(own_.name, own_.ranks); }
  FileDescriptor connect(const TcpAddress& to);
  std::optional<ConnectedHosts> join(FileDescriptor socket);
  std::optional<ConnectedHosts> obey(SignedChannel& channel, const SignedMessage& message);
  bool wait(int socket, short events, Clock::time_point until) const;
  Mismatch no_hub(const std::string& what) const {
    return Mismatch(fmt::format("host {} cannot join at {}: {}", own_text(), where_, what));
  }
  Timeout timeout() const {
    return Timeout(fmt::format("host {} could not join the others at {} within {}: {}", own_text(),
                               where_, seconds_text(Clock::now() - begin_), problem_));
  }

  const HubAddress& hub_;
  const HostIntroduction& own_;
  Deadline deadline_;
  const Patience& patience_;
  std::string where_;
  Clock::time_point begin_ = Clock::now();
  std::vector<TcpAddress> from_;
  std::string problem_;  ///< why there is no connection yet
};

/// True when there is something to do; false when the time is up.
bool HubSearch::wait(int socket, short events, Clock::time_point until) const {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    pollfd polled{socket, events, 0};
    const auto tick = std::clamp(left, milliseconds(0), kRetryHub);
    if (::poll(&polled, 1, static_cast<int>(tick.count())) > 0) return true;
    if (left.count() <= 0 || (patience_ && !patience_())) return false;
  }
}

FileDescriptor HubSearch::connect(const TcpAddress& to) {
  const auto family = to.storage.ss_family;
  const auto from = std::ranges::find_if(
      from_, [&](const TcpAddress& each) { return each.storage.ss_family == family; });
  if (!hub_.from.empty() && from == from_.end()) {
    problem_ = fmt::format("{} cannot be reached from {}", to.text(), hub_.from);
    return {};
  }
  FileDescriptor socket = begin_connection(to, from == from_.end() ? nullptr : &*from);
  int code = socket ? 0 : errno;
  if (code == EADDRNOTAVAIL && !hub_.from.empty())
    throw InvalidArgument(fmt::format("{} is no address of this host, {}", hub_.from, own_text()));
  if (socket) {
    const bool ready =
        wait(socket.get(), POLLOUT, std::min(deadline_.at, Clock::now() + kOneAttempt));
    code = ready ? connection_error(socket) : ETIMEDOUT;
    // Where nobody listens at a port of this host, the system may connect a socket to itself.
    if (code == 0 && own_address(socket).text() == to.text()) code = ECONNREFUSED;
  }
  if (code == 0) return socket;
  problem_ =
      fmt::format("{}; is the host of rank 0 started, and does it listen there?", error_text(code));
  return {};
}

/// Nothing when another attempt has to be made; problem_ then tells why.
std::optional<ConnectedHosts> HubSearch::join(FileDescriptor socket) {
  using Status = SignedChannel::Status;
  SignedChannel channel(std::move(socket), SignedChannel::Side::host, own_.token);
  channel.push(static_cast<std::uint32_t>(HostMessage::introduction), bytes_of(own_));
  problem_ = "what listens there does not answer";
  while (true) {
    const Status written = channel.write();
    SignedMessage message;
    switch (channel.read(message)) {
      case Status::done:
        if (auto connected = obey(channel, message)) return connected;
        if (static_cast<HostMessage>(message.kind) == HostMessage::failed) return {};
        break;
      case Status::again: {
        if (channel.has_unsent() && written == Status::done) break;  // it has just opened
        const short events = channel.has_unsent() ? POLLIN | POLLOUT : POLLIN;
        if (wait(channel.socket(), events, deadline_.at)) break;
        channel.push(static_cast<std::uint32_t>(HostMessage::gave_up), {});
        channel.write();
        throw timeout();
      }
      case Status::closed:
        if (channel.is_proved())
          throw PeerLost(
              0, fmt::format("the hub at {} ended while the hosts of the job joined", where_));
        problem_ = "what listens there hangs up";
        return {};
      case Status::other_token:
        throw no_hub("this host and the hub have different tokens");
      case Status::other_version:
        throw no_hub("the hub has a version of Tutti that joins otherwise");
      case Status::nonsense:
        throw no_hub("what listens there is no hub of Tutti");
    }
  }
}

std::optional<ConnectedHosts> HubSearch::obey(SignedChannel& channel,
                                              const SignedMessage& message) {
  switch (static_cast<HostMessage>(message.kind)) {
    case HostMessage::waiting:
      problem_ = message.content;
      return {};
    case HostMessage::failed:
      if (const auto verdict = read_verdict(message.content)) {
        if (verdict->kind != HostVerdict::Kind::later) throw_verdict(*verdict);
        problem_ = verdict->text;
        return {};
      }
      break;
    case HostMessage::joined:
      if (const auto list = read_host_list(message.content)) {
        ConnectedHosts connected{list->run, {}};
        for (const auto& host : list->hosts) connected.hosts.push_back({{}, host.name, host.ranks});
        connected.hosts.front().socket = channel.release();
        return connected;
      }
      break;
    default:
      break;
  }
  throw no_hub("the hub sends what this version of Tutti does not understand");
}

}  // namespace

ConnectedHosts connect_to_hub(const HubAddress& hub, const HostIntroduction& own, Deadline deadline,
                              const Patience& patience) {
  require_introduction(own);
  return HubSearch(hub, own, deadline, patience).run();
}

}  // namespace tutti
