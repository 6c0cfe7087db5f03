#include "job/rendezvous/host_rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file_descriptor.h"
#include "job/life/first_failure.h"
#include "job/rendezvous/broker.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "job/wire/frame.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kRetry{10};

/// The address of a unix socket that has no name in any file system: see unix(7), "abstract".
struct Address {
  explicit Address(const std::string& name) {
    TUTTI_CHECK(name.size() < sizeof address.sun_path, "a socket name of {} bytes", name.size());
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t bytes;
};

FileDescriptor open_socket(int flags) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!socket) {
    throw IoError(errno, fmt::format("cannot open a socket to the other workers of this host: {}",
                                     error_text(errno)));
  }
  return socket;
}

/// Calls attempt() until it returns something, or nothing before the deadline.
template <class Attempt>
auto retry_until(Deadline deadline, const Attempt& attempt) -> decltype(attempt()) {
  while (true) {
    if (auto result = attempt()) return result;
    if (Clock::now() + kRetry >= deadline.at) return {};
    std::this_thread::sleep_for(kRetry);
  }
}

/// Empty while another process listens under the name.
FileDescriptor listen_as(const Address& address, int size) {
  FileDescriptor socket = open_socket(SOCK_NONBLOCK);
  if (::bind(socket.get(), address.get(), address.bytes) == 0 &&
      ::listen(socket.get(), size) == 0) {
    return socket;
  }
  if (errno == EADDRINUSE) return {};
  throw IoError(errno,
                fmt::format("cannot serve the other workers of this host: {}", error_text(errno)));
}

/// The answer to a frame on a connection that has just been made; nothing where it hangs up.
std::optional<Frame> ask(int socket, const FrameHeader& header, Deadline deadline) {
  FrameWriter writer;
  writer.push(header, {}, nullptr, nullptr);
  FrameReader reader;
  Frame answer;
  while (Clock::now() < deadline.at) {
    const auto sent = writer.write(socket);
    const auto got = reader.read(socket, answer);
    if (got == FrameStatus::done) return answer;
    if (got != FrameStatus::again || sent == FrameStatus::closed) return {};
    pollfd polled{socket, static_cast<short>(writer.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    ::poll(&polled, 1, static_cast<int>(kRetry.count()));
  }
  return {};
}

/// How one worker connects to the broker of its host.
class Connection {
 public:
  Connection(const std::string& name, int rank, int first, int size)
      : address_(name), rank_(rank), first_(first), size_(size) {}

  /// Empty where it has to be tried again; problem() then tells why.
  FileDescriptor attempt(Deadline deadline) {
    FileDescriptor socket = open_socket(0);
    if (::connect(socket.get(), address_.get(), address_.bytes) != 0) {
      problem_ = fmt::format("rank {} has not come", first_);
      return {};
    }
    if (!is_own_stream(socket.get())) {
      problem_ = fmt::format("a process of another user listens in the place of rank {}", first_);
      return {};
    }
    FrameHeader hello;
    hello.kind = FrameHeader::hello;
    hello.number = rank_;
    hello.total = size_;
    // Where the first worker gives up at its own deadline, it still says why.
    const auto answer = ask(socket.get(), hello, Deadline::after(deadline.at, kLastWords));
    if (!answer) {
      if (problem_.empty()) problem_ = fmt::format("rank {} does not answer", first_);
      return {};
    }
    if (answer->header.kind == FrameHeader::welcome) {
      hosts_ = HostMap::read(answer->parcel.bytes);
      run_ = answer->text;
      return socket;
    }
    if (answer->header.kind == FrameHeader::broken) throw Mismatch(answer->text);
    throw_if_failed(*answer);
    // The program before this one, of the same launcher, may not have ended on all workers.
    problem_ = fmt::format("another process has joined as rank {}", rank_);
    return {};
  }

  const std::string& problem() const { return problem_; }
  const HostMap& hosts() const { return *hosts_; }
  const std::string& run() const { return run_; }

 private:
  Address address_;
  int rank_;
  int first_;
  int size_;
  std::string problem_;
  std::optional<HostMap> hosts_;
  std::string run_;
};

/// In this order: the line is closed before the broker that serves it.
struct BrokerAndLine {
  std::unique_ptr<Broker> broker;  ///< on the first worker
  std::unique_ptr<Rendezvous> line;
};

BrokerHosts connect_or_tell(const HostWorkers& workers, const FileDescriptor& listener) try {
  return workers.connect();
} catch (...) {
  tell_failure(listener, workers.first, workers.here - 1);
  throw;
}

}  // namespace

HostRendezvous join_host(const HostWorkers& workers, Deadline deadline) {
  const auto& [name, launcher, rank, size, first, here, connect] = workers;
  const auto begin = Clock::now();
  const auto timeout = [&](const std::string& problem) {
    return Timeout(
        fmt::format("rank {} of the {} workers that {} has started on this host could "
                    "not join the others within {}: {}",
                    rank, size, launcher, seconds_text(Clock::now() - begin), problem));
  };
  std::unique_ptr<Broker> broker;
  if (rank == first) {
    const Address address(name);
    auto listener = retry_until(deadline, [&] { return listen_as(address, size); });
    if (!listener) {
      throw timeout(
          "another process serves them: the program before this one has not ended, or two hosts of "
          "the job were started by one process of this machine, which are one host to Tutti: let "
          "the launcher tell all ranks that are on it");
    }
    if (connect) {
      broker = std::make_unique<Broker>(connect_or_tell(workers, listener), std::move(listener));
    } else {
      broker = std::make_unique<Broker>(size, std::move(listener));
    }
  }
  Connection connection(name, rank, first, size);
  auto socket = retry_until(deadline, [&] { return connection.attempt(deadline); });
  if (!socket) throw timeout(connection.problem());
  const auto both = std::make_shared<BrokerAndLine>(BrokerAndLine{
      std::move(broker), connect_to_first(std::move(socket), launcher, first, rank, size)});
  return {{both, both->line.get()}, connection.hosts(), connection.run()};
}

}  // namespace tutti
