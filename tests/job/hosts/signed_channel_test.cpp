// What passes between two hosts that prove a token to one another, when the one between them
// listens, changes, repeats and sends back.

#include "job/hosts/signed_channel.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Side = SignedChannel::Side;
using Status = SignedChannel::Status;

constexpr std::size_t kOpening = 40;
constexpr std::size_t kHeader = 48;

/// Hub and host, each with a socket to the one in the middle, through which all has to go.
struct Middle {
  explicit Middle(const std::string& token_of_host = "secret") {
    int ends[2];
    ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    to_hub = FileDescriptor(ends[0]);
    hub.emplace(FileDescriptor(ends[1]), Side::hub, "secret");
    ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    to_host = FileDescriptor(ends[0]);
    host.emplace(FileDescriptor(ends[1]), Side::host, token_of_host);
  }

  static std::string take(const FileDescriptor& from) {
    std::string bytes(1 << 16, '\0');
    const auto got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
  }
  static void give(const FileDescriptor& to, const std::string& bytes) {
    EXPECT_EQ(::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  /// What the host has sent.
  std::string from_host() {
    host->write();
    return take(to_host);
  }
  std::string from_hub() {
    hub->write();
    return take(to_hub);
  }
  void open() {
    SignedMessage none;
    give(to_hub, from_host());
    EXPECT_EQ(hub->read(none), Status::again);
    give(to_host, from_hub());
    EXPECT_EQ(host->read(none), Status::again);
  }

  FileDescriptor to_hub, to_host;
  std::optional<SignedChannel> hub, host;
};

TEST(SignedChannel, PassesMessagesBothWaysInOrder) {
  Middle middle;
  middle.host->push(1, "pushed before it is open");
  middle.open();
  middle.hub->push(2, "");
  for (const auto& content : {std::string("b"), std::string(5000, 'c')})
    middle.hub->push(3, content);
  Middle::give(middle.to_hub, middle.from_host());
  SignedMessage message;
  EXPECT_FALSE(middle.hub->is_proved());
  ASSERT_EQ(middle.hub->read(message), Status::done);
  EXPECT_TRUE(middle.hub->is_proved());
  EXPECT_EQ(message.kind, 1U);
  EXPECT_EQ(message.content, "pushed before it is open");
  Middle::give(middle.to_host, middle.from_hub() + "what comes after");
  for (const std::size_t bytes : {0, 1, 5000}) {
    ASSERT_EQ(middle.host->read(message), Status::done);
    EXPECT_EQ(message.content.size(), bytes);
  }
  // Not a byte beyond the last message has been read.
  const auto socket = middle.host->release();
  EXPECT_EQ(Middle::take(socket), "what comes after");
}

TEST(SignedChannel, AMessageInSinglePiecesArrives) {
  Middle middle;
  middle.open();
  middle.host->push(7, "in pieces");
  const auto bytes = middle.from_host();
  SignedMessage message;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Middle::give(middle.to_hub, bytes.substr(i, 1));
    EXPECT_EQ(middle.hub->read(message), i + 1 < bytes.size() ? Status::again : Status::done);
  }
  EXPECT_EQ(message.content, "in pieces");
}

// promise: clusters#between-hosts
TEST(SignedChannel, AnyChangedByteIsFound) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i == 0 || i < bytes; ++i) {
    Middle middle;
    middle.open();
    middle.host->push(1, "ranks 0 1");
    auto changed = middle.from_host();
    bytes = changed.size();
    changed[i] = static_cast<char>(changed[i] ^ 1);
    Middle::give(middle.to_hub, changed);
    SignedMessage message;
    // A size that has grown keeps it waiting for the rest.
    EXPECT_NE(middle.hub->read(message), Status::done) << "byte " << i;
  }
  EXPECT_EQ(bytes, kHeader + 9);
}

// promise: clusters#several-hosts, clusters#between-hosts
TEST(SignedChannel, WhoHasAnotherTokenIsFoundByBoth) {
  Middle middle("Secret");
  middle.open();
  middle.host->push(1, "let me in");
  Middle::give(middle.to_hub, middle.from_host());
  SignedMessage message;
  EXPECT_EQ(middle.hub->read(message), Status::other_token);
  EXPECT_FALSE(middle.hub->is_proved());
  Middle::give(middle.to_host, middle.from_hub());
  EXPECT_EQ(middle.host->read(message), Status::other_token);
  // A hub that simulates success is not believed either.
  Middle other("Secret");
  other.open();
  other.hub->push(4, "welcome");
  Middle::give(other.to_host, other.from_hub());
  EXPECT_EQ(other.host->read(message), Status::other_token);
  EXPECT_FALSE(other.host->is_proved());
}

// promise: clusters#between-hosts
TEST(SignedChannel, AMessageThatIsRepeatedOrLeftOutIsFound) {
  SignedMessage message;
  Middle repeated;
  repeated.open();
  repeated.host->push(1, "once");
  const auto once = repeated.from_host();
  Middle::give(repeated.to_hub, once + once);
  EXPECT_EQ(repeated.hub->read(message), Status::done);
  EXPECT_EQ(repeated.hub->read(message), Status::other_token);
  Middle left_out;
  left_out.open();
  left_out.host->push(1, "first");
  left_out.from_host();
  left_out.host->push(1, "second");
  Middle::give(left_out.to_hub, left_out.from_host());
  EXPECT_EQ(left_out.hub->read(message), Status::other_token);
}

// promise: clusters#between-hosts
TEST(SignedChannel, AMessageThatIsSentBackIsFound) {
  Middle middle;
  middle.open();
  middle.host->push(1, "mine");
  Middle::give(middle.to_host, middle.from_host());
  SignedMessage message;
  EXPECT_EQ(middle.host->read(message), Status::other_token);
}

// promise: clusters#between-hosts
TEST(SignedChannel, WhatOneConversationHadIsWorthNothingInTheNext) {
  Middle first;
  const auto opening_of_host = first.from_host();
  Middle::give(first.to_hub, opening_of_host);
  SignedMessage message;
  first.hub->read(message);
  const auto opening_of_hub = first.from_hub();
  Middle::give(first.to_host, opening_of_hub);
  first.host->read(message);
  first.host->push(1, "let me in");
  first.hub->push(2, "welcome");
  const auto said_by_host = first.from_host();
  const auto said_by_hub = first.from_hub();
  Middle second;
  Middle::give(second.to_hub, opening_of_host + said_by_host);
  EXPECT_EQ(second.hub->read(message), Status::other_token);
  Middle::give(second.to_host, opening_of_hub + said_by_hub);
  EXPECT_EQ(second.host->read(message), Status::other_token);
}

// promise: clusters#between-hosts
TEST(SignedChannel, TheTokenIsNotOnTheWire) {
  Middle middle;
  std::string heard = middle.from_host();
  EXPECT_EQ(heard.size(), kOpening);
  Middle::give(middle.to_hub, heard);
  SignedMessage message;
  middle.hub->read(message);
  const auto answer = middle.from_hub();
  EXPECT_EQ(answer.size(), kOpening);
  Middle::give(middle.to_host, answer);
  middle.host->push(1, "hello");
  middle.host->read(message);
  heard += answer + middle.from_host();
  EXPECT_THAT(heard, HasSubstr("hello"));
  EXPECT_THAT(heard, Not(HasSubstr("secret")));
}

// promise: clusters#between-hosts
TEST(SignedChannel, WhatIsNoOpeningGetsNoAnswer) {
  for (const std::string bytes : {"GET / HTTP/1.1\r\n\r\n", "TUTX", "TUTM and what follows"}) {
    Middle middle;
    Middle::give(middle.to_hub, bytes);
    SignedMessage message;
    EXPECT_EQ(middle.hub->read(message), Status::nonsense);
    EXPECT_EQ(middle.from_hub(), "");
  }
}

TEST(SignedChannel, AnotherVersionIsToldApart) {
  Middle middle;
  auto opening = middle.from_host();
  opening[4] = 2;
  Middle::give(middle.to_hub, opening);
  SignedMessage message;
  EXPECT_EQ(middle.hub->read(message), Status::other_version);
  auto answer = middle.from_hub();
  answer[4] = 2;
  Middle::give(middle.to_host, answer);
  EXPECT_EQ(middle.host->read(message), Status::other_version);
}

TEST(SignedChannel, WhoHasProvedNothingCannotMakeTheOtherKeepMuch) {
  Middle middle;
  middle.open();
  middle.host->push(1, std::string(kMaxUnprovedBytes + 1, 'x'));
  Middle::give(middle.to_hub, middle.from_host());
  SignedMessage message;
  EXPECT_EQ(middle.hub->read(message), Status::nonsense);
}

TEST(SignedChannel, AHangUpIsSeenByWhoReads) {
  Middle middle;
  middle.open();
  middle.to_hub.reset();
  SignedMessage message;
  EXPECT_EQ(middle.hub->read(message), Status::closed);
}

}  // namespace
}  // namespace tutti::test
