#include "c10d/backend_stream.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error_kind.h"
#include "base/helper_thread.h"
#include "c10d/pipe_signal.h"

namespace tutti {
namespace {

constexpr int kHeaderTag = 0;
/// Bytes of a message travel in pieces whose size is their tag.
constexpr std::size_t kMaxPiece = std::size_t{1} << 30;

}  // namespace

c10::intrusive_ptr<c10d::Work> post_work(BackendLane& lane, BackendStream::Direction direction,
                                         std::byte* bytes, std::size_t size, int peer, int tag) {
  std::vector<at::Tensor> tensors{at::from_blob(bytes, {static_cast<std::int64_t>(size)},
                                                at::TensorOptions().dtype(at::kByte))};
  const WithoutPipeSignal without;
  const std::lock_guard lock(lane.posting);
  return direction == BackendStream::Direction::kSend ? lane.backend->send(tensors, peer, tag)
                                                      : lane.backend->recv(tensors, peer, tag);
}

std::string text_of_loss(int peer) {
  const auto text = exception_text();
  // Gloo's texts begin with a place in its sources and end with advice.
  const auto end = text.find(". This is typically");
  auto begin = text.starts_with('[') ? text.find("] ") : std::string::npos;
  begin = begin == std::string::npos ? 0 : begin + 2;
  return fmt::format("the connection to peer {} has failed: {}", peer,
                     text.substr(begin, end == std::string::npos ? end : end - begin));
}

bool wait_for_work(c10d::Work& work) {
  constexpr std::chrono::hours kForever{24 * 365};
  return work.wait(kForever);
}

void abort_work(c10d::Work& work) noexcept {
  try {
    work.abort();
  } catch (const std::exception&) {  // a backend that cannot: its operation ends when it ends
  }
}

BackendStream::BackendStream(BackendLane& lane, int number, int self, int peer, Direction direction,
                             Failed failed)
    : lane_(lane),
      number_(number),
      self_(self),
      peer_(peer),
      direction_(direction),
      failed_(std::move(failed)) {}

BackendStream::~BackendStream() {
  if (thread_.joinable()) thread_.join();
}

void BackendStream::send(std::span<const std::byte> bytes, Link::Done done) {
  post(const_cast<std::byte*>(bytes.data()), bytes.size(), std::move(done));  // tensors are mutable
}

void BackendStream::receive(std::span<std::byte> bytes, Link::Done done) {
  post(bytes.data(), bytes.size(), std::move(done));
}

void BackendStream::post(std::byte* bytes, std::size_t size, Link::Done done) {
  std::unique_lock lock(mutex_);
  if (end_) {
    const auto error = *end_;
    lock.unlock();
    done(&error);
    return;
  }
  auto message = std::make_shared<Message>();
  message->size = size;
  message->number = posted_++;
  message->done = std::move(done);
  message->header = std::make_shared<Header>(Header{size, message->number});
  if (direction_ == Direction::kReceive) *message->header = {};
  std::string failure;
  try {
    message->works = post_works(bytes, size, *message->header);
  } catch (...) {
    failure = text_of_loss(peer_);
  }
  open_.push_back(std::move(message));
  if (!thread_.joinable()) {
    thread_ = start_helper_thread("tutti link", [this] { wait_in_turn(); });
  }
  lock.unlock();
  changed_.notify_all();
  if (!failure.empty()) failed_({LinkError::Kind::kLost, peer_, failure});
}

/// All of a message at once: what matches it may come before it is waited for.
Works BackendStream::post_works(std::byte* bytes, std::size_t size, Header& header) {
  Works works;
  works.push_back(post_work(lane_, direction_, reinterpret_cast<std::byte*>(&header),
                            sizeof(Header), peer_, kHeaderTag));
  for (std::size_t at = 0; at < size; at += kMaxPiece) {
    const auto piece = std::min(kMaxPiece, size - at);
    works.push_back(
        post_work(lane_, direction_, bytes + at, piece, peer_, static_cast<int>(piece)));
  }
  return works;
}

void BackendStream::wait_in_turn() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !open_.empty() || is_aborted_; });
    if (open_.empty()) return;
    const auto message = open_.front();
    auto error = end_;
    if (!is_aborted_) {
      lock.unlock();
      error = wait_for(*message);
      if (error) failed_(*error);
      lock.lock();
      // Another thread may be about to tell the owner of the same loss first.
      if (error) changed_.wait(lock, [this] { return end_.has_value(); });
      if (error && error->kind != LinkError::Kind::kMismatch) error = end_;
    }
    open_.pop_front();
    auto works = std::move(message->works);
    lock.unlock();
    works.clear();  // the backend lets go of the memory before the owner hears of the end
    message->done(error ? &*error : nullptr);
    lock.lock();
  }
}

/// Nothing: it is complete.
std::optional<LinkError> BackendStream::wait_for(Message& message) {
  const LinkError lost{LinkError::Kind::kLost, peer_, ""};
  try {
    for (std::size_t i = 0; i < message.works.size(); ++i) {
      if (!wait_for_work(*message.works[i])) return lost;  // aborted by end()
      const auto& [size, number] = *message.header;
      if (i > 0 || direction_ == Direction::kSend) continue;
      TUTTI_CHECK(number == message.number, "message {} of peer {} on lane {} came as number {}",
                  message.number, peer_, number_, number);
      if (size != message.size) {
        return LinkError{LinkError::Kind::kMismatch, peer_,
                         fmt::format("peer {} has sent {} bytes on lane {} where peer {} receives "
                                     "{}",
                                     peer_, size, number_, self_, message.size)};
      }
    }
  } catch (...) {
    return LinkError{LinkError::Kind::kLost, peer_, text_of_loss(peer_)};
  }
  return std::nullopt;
}

void BackendStream::refuse(LinkError error) {
  const std::lock_guard lock(mutex_);
  if (!end_) end_ = std::move(error);
  changed_.notify_all();
}

void BackendStream::end(LinkError error) {
  refuse(std::move(error));
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  for (const auto& message : open_) {
    for (const auto& work : message->works) abort_work(*work);
  }
  changed_.notify_all();
}

}  // namespace tutti
