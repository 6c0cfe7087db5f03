#pragma once

// How the driver (bench/run.py) talks to one rank of a contestant: a unix socket, one line each
// way. A rank that is not being measured sleeps in next(), so that contestants can take turns in
// one run.
//
// Threads: one. Failure: ends the process with a message; the driver prints it.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace bench {

[[noreturn]] inline void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(1);
}

class Control {
 public:
  /// Connects to the driver's socket and says which rank this is.
  Control(const std::string& path, int rank) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      fail("cannot reach the driver at " + path + ": " + std::strerror(errno));
    }
    send(std::to_string(rank));
  }
  ~Control() { ::close(socket_); }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// The driver's next line; false when it hung up.
  bool next(std::istringstream& command) {
    for (std::size_t end; (end = pending_.find('\n')) == std::string::npos;) {
      char piece[256];
      const ssize_t got = ::read(socket_, piece, sizeof piece);
      if (got <= 0) return false;
      pending_.append(piece, static_cast<std::size_t>(got));
    }
    const std::size_t end = pending_.find('\n');
    command = std::istringstream(pending_.substr(0, end));
    pending_.erase(0, end + 1);
    return true;
  }

  /// Answers with one JSON value.
  void send(std::string json) {
    json += '\n';
    for (std::size_t sent = 0; sent < json.size();) {
      const ssize_t n = ::send(socket_, json.data() + sent, json.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) std::_Exit(0);
      sent += static_cast<std::size_t>(n);
    }
  }

  void send(const std::vector<std::int64_t>& values) {
    std::string json = "[";
    for (const std::int64_t value : values) json.append(std::to_string(value)).push_back(',');
    if (values.empty()) json.push_back(',');
    json.back() = ']';
    send(json);
  }

 private:
  int socket_;
  std::string pending_;
};

/// Nanoseconds of each of `iterations` calls, back to back: one reading of the clock per call.
template <class Call>
std::vector<std::int64_t> measure(int iterations, Call&& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::int64_t> nanoseconds(static_cast<std::size_t>(iterations));
  auto last = Clock::now();
  for (auto& value : nanoseconds) {
    call();
    const auto now = Clock::now();
    value = std::chrono::nanoseconds(now - last).count();
    last = now;
  }
  return nanoseconds;
}

}  // namespace bench
