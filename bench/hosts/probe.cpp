// What one TCP connection moves while both ends send as fast as they can: each end prints the bytes
// per second that it received. The link's limit for everything else that runs between two hosts;
// script/hosts --probe builds and runs it.

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
constexpr double kWarmUp = 0.3;  // seconds: buckets of the shaper run empty, windows open
constexpr double kMargin = 0.3;  // seconds that an end sends for longer than the other one measures
constexpr int kPatience = 10;    // seconds without a peer or a byte
constexpr std::size_t kPiece = 1 << 18;  // bytes of a call

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "probe: %s: %s\n", what.c_str(), std::strerror(errno));
  std::_Exit(1);
}

int accept_one(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("bind");
  if (listen(listener, 1) != 0) fail("listen");
  pollfd waiting{listener, POLLIN, 0};
  if (poll(&waiting, 1, kPatience * 1000) != 1) fail("nobody connected");
  const int connection = accept(listener, nullptr, nullptr);
  if (connection < 0) fail("accept");
  close(listener);  // Or it takes the connection of the next probe here, and resets it at its end.
  return connection;
}

int connect_to(const char* host, const char* port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host, port, &hints, &found) != 0) fail(std::string("no host ") + host);
  const auto deadline = Clock::now() + std::chrono::seconds(kPatience);
  for (;;) {  // The other end may not listen yet.
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, found->ai_addr, found->ai_addrlen) == 0) return connection;
    if (Clock::now() > deadline) fail(std::string("cannot reach ") + host);
    close(connection);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void send_for(int connection, double seconds) {
  const std::vector<char> data(kPiece, 'x');
  const auto end = Clock::now() + Seconds(seconds);
  while (Clock::now() < end) {
    if (send(connection, data.data(), data.size(), MSG_NOSIGNAL) <= 0) fail("send");
  }
  shutdown(connection, SHUT_WR);
}

double receive_for(int connection, double seconds) {
  std::vector<char> data(kPiece);
  const auto start = Clock::now();
  double first = 0;
  double last = 0;
  std::int64_t bytes = 0;
  for (;;) {
    const ssize_t got = recv(connection, data.data(), data.size(), 0);
    if (got < 0) fail("recv");
    if (got == 0) break;
    const double now = Seconds(Clock::now() - start).count();
    if (now < kWarmUp || last >= kWarmUp + seconds) continue;
    if (first == 0) {
      first = now;  // What arrives until now belongs to the time before.
    } else {
      bytes += got;
    }
    last = now;
  }
  if (last < kWarmUp + seconds) fail("the other end closed too early");
  return static_cast<double>(bytes) / (last - first);
}
}  // namespace

int main(int count, char** arguments) {
  if (count != 3 && count != 4) {
    std::fputs("usage: probe SECONDS PORT [HOST]; without HOST it listens\n", stderr);
    return 2;
  }
  const double seconds = std::atof(arguments[1]);
  const int connection =
      count == 3 ? accept_one(std::atoi(arguments[2])) : connect_to(arguments[3], arguments[2]);
  const timeval patience{kPatience, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  std::thread sender(send_for, connection, kWarmUp + seconds + kMargin);
  const double rate = receive_for(connection, seconds);
  sender.join();
  std::printf("%.0f\n", rate);
}
