#pragma once

// Messages between two hosts that prove to one another that they know a token. Each side sends 32
// random bytes first. From these and the token comes a key, HMAC-SHA256, and each message carries
// the HMAC-SHA256, by that key, of its direction, its number, its kind and its content: what a
// stranger makes, changes, repeats or sends back is found. The host opens; the hub answers only
// what opens rightly.
//
// Nothing here blocks. Not one byte is read beyond a message, so that the socket can be used for
// something else afterwards.
//
// Threads: one at a time per object. Failure: states; Error where the system has no random numbers.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/file_descriptor.h"

namespace tutti {

inline constexpr std::size_t kMaxSignedBytes = std::size_t{1} << 20;
/// Before the other side has proved anything.
inline constexpr std::size_t kMaxUnprovedBytes = std::size_t{1} << 14;

struct SignedMessage {
  std::uint32_t kind = 0;
  std::string content;
};

class SignedChannel {
 public:
  enum class Side : std::uint8_t { hub, host };
  enum class Status : std::uint8_t {
    done,           ///< read: a message is there; write: nothing is left to send
    again,          ///< the socket has no more data, or no room
    closed,         ///< the other end hung up
    nonsense,       ///< what came is no message
    other_version,  ///< the other side has another version of these messages
    other_token,    ///< the other side does not know the token, or says so of this one
  };

  SignedChannel(FileDescriptor socket, Side side, std::string token);

  /// With `done`, `message` is the next whole one. All but `done` and `again` are final.
  Status read(SignedMessage& message);
  /// Messages pushed before the other side has opened wait for that.
  void push(std::uint32_t kind, std::string content);
  Status write();
  bool has_unsent() const { return !unsent_.empty() || (has_key_ && !waiting_.empty()); }
  /// True once a message of the other side has come, which proves that it knows the token.
  bool is_proved() const { return received_ > 0; }

  int socket() const { return socket_.get(); }
  FileDescriptor release() { return std::move(socket_); }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Opening {
    std::uint32_t magic = 0;
    std::uint32_t version = 0;
    Digest random{};
  };
  struct Header {
    std::uint32_t magic = 0;
    std::uint32_t kind = 0;
    std::uint64_t bytes = 0;
    Digest proof{};
  };

  Status read_into(void* to, std::size_t bytes, std::size_t& got);
  Status read_opening();
  void open();
  void derive_key();
  Digest proof(Side from, std::uint64_t number, const Header& header,
               const std::string& content) const;
  void say_other_token();

  FileDescriptor socket_;
  Side side_;
  std::string token_;
  Opening mine_;
  Opening theirs_;
  std::size_t got_opening_ = 0;
  bool has_key_ = false;
  Digest key_{};
  Header header_;
  std::size_t got_header_ = 0;
  std::string content_;
  std::size_t got_content_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t pushed_ = 0;
  std::deque<SignedMessage> waiting_;  ///< pushed, and not signed yet
  std::string unsent_;
};

}  // namespace tutti
