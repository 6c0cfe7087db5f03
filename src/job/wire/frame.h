#pragma once

// What broker and workers say to each other over their stream socket: a fixed header, which carries
// the descriptors, then a text, then bytes. Nothing here blocks.
//
// Threads: one at a time per object. Failure: states, not exceptions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "job/wire/rank_set.h"
#include "job/wire/rendezvous.h"

namespace tutti {

inline constexpr std::size_t kMaxFrameText = 4096;
inline constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 30;
/// Linux passes up to 253 descriptors at once.
inline constexpr std::size_t kMaxFrameDescriptors = 250;

/// The most connections that are accepted in one round: however many processes connect, those that
/// are there are heard in between, and deadlines looked at.
inline constexpr int kMaxAccepted = 64;

/// The worker on whose host the hub is, through which all others reach one another.
inline constexpr int kHubRank = 0;

struct FrameHeader {
  enum Kind : std::uint32_t {
    give = 1,   ///< worker: text is the tag
    give_up,    ///< worker
    blame,      ///< worker: number is the culprit, text the reason
    ended,      ///< worker: number is who has ended
    parcel,     ///< broker: number is its place among `total`
    timed_out,  ///< broker: text tells why
    lost,       ///< broker: number is who ended
    broken,     ///< broker: text is the reason why it can serve no worker any more
    hello,      ///< worker that connects: number is its rank, total the number of workers
    welcome,    ///< broker: the worker is the one of its rank
    taken,      ///< broker: that rank has connected before
    hold,       ///< worker: it holds the block `request`, of `extent` bytes
    let_go,     ///< worker: it holds the block `request` no longer
    store,      ///< worker: bytes are a StoreMessage
    over,       ///< broker: `origin` has ended
    saves,      ///< worker: asked to end, it first saves what it has
    beat,       ///< broker: nothing else was to be told to another host's broker
    yours,      ///< hub: of what that host has submitted, the next is in order, and `number` more;
                ///< `origin` is that of the first
    failed      ///< first worker that cannot join: `number` is an ErrorClass, `total` its code
  };
  static constexpr std::uint32_t kMagic = 0x54555435;
  std::uint32_t magic = kMagic;
  std::uint32_t kind = 0;
  std::uint64_t request = 0;  ///< the worker's number for what it asked
  RankSet::Words ranks{};
  std::uint64_t bytes = 0;
  std::uint32_t text_bytes = 0;
  std::uint32_t descriptors = 0;
  std::int32_t number = 0;
  std::int32_t total = 0;
  std::int32_t origin = -1;  ///< between brokers: the worker from whom it is
  std::uint32_t haste = 0;   ///< store: Haste::Kind; `ranks` are then the members of its round
  std::uint64_t extent = 0;  ///< hold: bytes; store: number of its round
};
static_assert(sizeof(FrameHeader) == 56 + sizeof(RankSet::Words));

struct Frame {
  FrameHeader header;
  std::string text;
  Parcel parcel;
};

enum class FrameStatus : std::uint8_t {
  done,         ///< read: a frame is there; write: nothing is left to send
  again,        ///< the socket has no more data, or no room
  crowded,      ///< the kernel holds too many descriptors on their way: try again a little later
  closed,       ///< the other end hung up
  nonsense,     ///< what came is no frame
  descriptors,  ///< this process may not open the descriptors that came: a frame is lost
};

class FrameReader {
 public:
  /// Reads on; with `done`, `frame` is the next whole one. After `done` and `descriptors` there may
  /// be more.
  FrameStatus read(int socket, Frame& frame);

 private:
  FrameStatus read_into(int socket, char* to, std::size_t bytes);

  Frame frame_;
  std::size_t got_ = 0;      ///< bytes of the current frame, over all three parts
  bool incomplete_ = false;  ///< some of its descriptors could not be opened
};

class FrameWriter {
 public:
  /// `owner` keeps `parcel` alive until it was sent. Sizes are filled in here.
  void push(FrameHeader header, std::string text, const Parcel* parcel,
            std::shared_ptr<const void> owner);
  /// Writes what the socket takes, many frames at once.
  FrameStatus write(int socket);
  bool empty() const { return queue_.empty(); }
  /// Bytes that are left to write, but for those of the first frame that are written.
  std::size_t bytes() const { return bytes_; }
  /// Calls by which something was written: the messages that a network may carry.
  std::uint64_t writes() const { return writes_; }
  /// The header of the last frame, which may still be changed; null where it is being written.
  FrameHeader* last();

 private:
  struct Item {
    FrameHeader header;
    std::string text;
    const Parcel* parcel;
    std::shared_ptr<const void> owner;
    std::size_t sent = 0;
    std::size_t bytes() const { return sizeof header + header.text_bytes + header.bytes; }
  };
  void note(std::size_t sent);

  std::deque<Item> queue_;
  std::size_t bytes_ = 0;
  std::uint64_t writes_ = 0;
};

/// True when the other end of a unix stream socket belongs to this user.
bool is_own_stream(int socket) noexcept;

}  // namespace tutti
