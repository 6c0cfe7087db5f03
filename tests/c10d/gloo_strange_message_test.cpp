// A peer of Gloo that sends what no link of Tutti sends.

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "c10d/gloo_link.h"
#include "comm/link/link.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kMostDescriptors = 1024;

std::set<int> descriptors() {
  std::set<int> open;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1) open.insert(fd);
  }
  return open;
}

using GetName = int (*)(int, sockaddr*, socklen_t*);

/// The port at one end of a connection; 0 where `fd` is none over TCP.
int port_of(int fd, GetName get_name) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (get_name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  return address.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
             : 0;
}

struct Connection {
  int writer = -1;
  int reader = -1;
};

/// A connection with both ends among `open`.
Connection connection_among(const std::set<int>& open) {
  for (const int writer : open) {
    const int local = port_of(writer, ::getsockname);
    const int remote = port_of(writer, ::getpeername);
    if (local == 0 || remote == 0) continue;
    for (const int reader : open) {
      if (port_of(reader, ::getsockname) == remote && port_of(reader, ::getpeername) == local) {
        return {writer, reader};
      }
    }
  }
  return {};
}

/// What stands before a message in Gloo's protocol (gloo/transport/tcp/pair.h, Op::preamble).
struct Preamble {
  std::uint64_t bytes;
  std::uint64_t opcode;
  std::uint64_t slot;
  std::uint64_t offset;
  std::uint64_t length;
  std::uint64_t offset_there;
};
constexpr std::uint64_t kSendBuffer = 0;

int unread(int fd) {
  int bytes = -1;
  EXPECT_EQ(::ioctl(fd, FIONREAD, &bytes), 0);
  return bytes;
}

// Gloo writes such a message to where the peer says, in a registered buffer, of which a link makes
// none (docs/clusters.md). findings-3: C9
TEST(GlooStrangeMessage, ForARegisteredBufferIsNotRead) {
  if (const auto why = why_no_gloo(); !why.empty()) GTEST_SKIP() << why;
  const auto before = descriptors();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<std::unique_ptr<Link>, 2> links;
  {
    std::vector<std::jthread> threads;
    for (int self = 0; self < 2; ++self) {
      threads.emplace_back([&, self] {
        links[static_cast<std::size_t>(self)] =
            make_gloo_link({.self = self,
                            .peers = 2,
                            .lanes = 1,
                            .interface = "lo",
                            .deadline = Deadline::after(Clock::now(), seconds(60))},
                           store);
      });
    }
  }
  auto opened = descriptors();
  for (const int fd : before) opened.erase(fd);
  const auto connection = connection_among(opened);
  ASSERT_NE(connection.writer, -1);

  constexpr std::size_t kPayload = 64;
  struct {
    Preamble preamble;
    std::array<char, kPayload> payload;
  } message{};
  message.preamble = {sizeof(Preamble) + kPayload, kSendBuffer, 0, 0, kPayload,
                      ~std::uint64_t{0} - 15};  // with the length: 48, within any buffer
  ASSERT_EQ(::write(connection.writer, &message, sizeof message),
            static_cast<ssize_t>(sizeof message));
  const auto deadline = Clock::now() + seconds(20);
  while (unread(connection.reader) > static_cast<int>(kPayload) && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(unread(connection.reader), static_cast<int>(kPayload));
}

}  // namespace
}  // namespace tutti::test
