#pragma once

// One direction of one lane to one peer of a backend link: messages in the order in which they were
// posted, and the thread that waits for them.
//
// Threads: any; Dones are called by the stream's own thread, or by end().

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/link/link.h"

namespace tutti {

/// A backend, whose send() and recv() count operations without a lock of their own.
struct BackendLane {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::mutex posting;
};

/// Works of a backend: those of one message.
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

class BackendStream {
 public:
  enum class Direction { kSend, kReceive };
  /// Called without locks when the backend or the peer has failed; end() follows. No text: end()
  /// was the cause.
  using Failed = std::function<void(const LinkError&)>;

  BackendStream(BackendLane& lane, int number, int self, int peer, Direction direction,
                Failed failed);
  BackendStream(const BackendStream&) = delete;
  BackendStream& operator=(const BackendStream&) = delete;
  /// After end().
  ~BackendStream();

  void send(std::span<const std::byte> bytes, Link::Done done);
  void receive(std::span<std::byte> bytes, Link::Done done);

  /// Later messages fail with this. Open ones end by themselves: what has arrived before the
  /// connection ended is received.
  void refuse(LinkError error);
  /// Open and later messages fail with this, or as they were refused. Does not wait for it.
  void end(LinkError error);

 private:
  /// What goes before the bytes.
  struct Header {
    std::uint64_t size = 0;
    std::uint64_t number = 0;  ///< counts the messages of the stream
  };
  struct Message {
    std::uint64_t size = 0;
    std::uint64_t number = 0;
    Link::Done done;
    std::shared_ptr<Header> header;
    Works works;  ///< the header's, then those of the bytes
  };

  void post(std::byte* bytes, std::size_t size, Link::Done done);
  Works post_works(std::byte* bytes, std::size_t size, Header& header);
  void wait_in_turn();
  std::optional<LinkError> wait_for(Message& message);

  BackendLane& lane_;
  const int number_;
  const int self_;
  const int peer_;
  const Direction direction_;
  const Failed failed_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> open_;  ///< the first one is waited for
  std::optional<LinkError> end_;               ///< why messages are refused
  bool is_aborted_ = false;                    ///< open ones too
  std::uint64_t posted_ = 0;
  std::thread thread_;
};

/// The text of a loss, in a handler of the backend's exception.
std::string text_of_loss(int peer);
/// Posts one operation of the backend; `tag` distinguishes what must not meet.
c10::intrusive_ptr<c10d::Work> post_work(BackendLane& lane, BackendStream::Direction direction,
                                         std::byte* bytes, std::size_t size, int peer, int tag);
/// Whether the work is complete; false where it was aborted. Throws what the backend throws. Gloo
/// gives up all peers of a wait that times out: this one does not.
bool wait_for_work(c10d::Work& work);
/// Wakes who waits for it.
void abort_work(c10d::Work& work) noexcept;

}  // namespace tutti
