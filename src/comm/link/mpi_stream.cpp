#include "comm/link/mpi_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/deadline.h"
#include "mpi/mpi_library.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // counts of MPI are ints
constexpr std::chrono::milliseconds kCancelGrace{50};    // of a receive that is cancelled

int header_tag(int lane) { return 2 * lane + 1; }
int bytes_tag(int lane) { return 2 * lane + 2; }

void require(int code, const char* call) {
  if (code != 0) throw IoError(0, fmt::format("{}: {}", call, mpi_text(code)));
}

}  // namespace

MpiStream::MpiStream(Place place, Failed failed) : place_(place), failed_(std::move(failed)) {}

void MpiStream::post(std::byte* bytes, std::size_t size, Link::Done done) {
  const bool is_next = messages_.empty() || messages_.back().has_header;
  messages_.push_back({bytes, size, std::move(done)});
  if (is_next) start(messages_.back());
}

MpiStream::Request MpiStream::post_part(void* bytes, std::size_t size, int tag) {
  const auto& mpi = mpi_functions();
  const int count = static_cast<int>(size);
  Request request = mpi.no_request;
  const int code = place_.sends
                       ? mpi.send(bytes, count, place_.peer, tag, place_.communicator, &request)
                       : mpi.receive(bytes, count, place_.peer, tag, place_.communicator, &request);
  require(code, place_.sends ? "MPI_Isend" : "MPI_Irecv");
  return request;
}

/// A failure is thrown when the message is polled.
void MpiStream::start(Message& message) try {
  if (place_.sends) {
    message.header = message.size;
    message.has_header = true;
  }
  message.requests.push_back(mpi_functions().no_request);
  message.requests.back() =
      post_part(&message.header, sizeof message.header, header_tag(place_.lane));
  if (place_.sends) start_bytes(message);
} catch (const IoError& error) {
  message.failure = error.what();
}

void MpiStream::start_bytes(Message& message) {
  for (std::uint64_t at = 0; at < message.size; at += kMaxPiece) {
    const auto piece = std::min<std::uint64_t>(kMaxPiece, message.size - at);
    message.requests.push_back(post_part(message.bytes + at, piece, bytes_tag(place_.lane)));
  }
}

bool MpiStream::is_complete(Message& message) {
  bool are_complete = false;
  require(mpi_functions().test(message.requests.data(), static_cast<int>(message.requests.size()),
                               &are_complete),
          "MPI_Testall");
  return are_complete;
}

/// The size has come: the bytes are received, and the next message waits for its own.
std::optional<LinkError> MpiStream::read_header(Messages::iterator at) {
  if (at->header != at->size) {
    return LinkError{LinkError::Kind::kMismatch, place_.peer,
                     fmt::format("peer {} has sent {} bytes on lane {} where peer {} receives {}",
                                 place_.peer, at->header, place_.lane, place_.self, at->size)};
  }
  at->has_header = true;
  start_bytes(*at);
  if (const auto next = std::next(at); next != messages_.end()) start(*next);
  return {};
}

bool MpiStream::poll() {
  bool has_advanced = false;
  for (auto at = messages_.begin(); at != messages_.end();) {
    auto& message = *at;
    if (message.requests.empty()) break;  // waits for the header of the one before
    std::optional<LinkError> error;
    bool is_over = false;
    try {
      if (!message.failure.empty()) throw IoError(0, message.failure);
      if (!is_complete(message)) {
        if (!message.has_header) break;
        ++at;
        continue;
      }
      is_over = message.has_header || message.size == 0;
      if (!message.has_header) error = read_header(at);
    } catch (const IoError& failure) {
      error = {
          LinkError::Kind::kLost, place_.peer,
          fmt::format("the connection to peer {} has failed: {}", place_.peer, failure.what())};
    }
    has_advanced = true;
    if (error) failed_(*error);
    if (!error && !is_over) {
      ++at;
      continue;
    }
    const auto done = std::move(message.done);
    at = messages_.erase(at);
    done(error ? &*error : nullptr);
    if (error) break;
  }
  return has_advanced;
}

/// Receives are cancelled. What MPI does not give back is a send, or half a message.
bool MpiStream::gives_back(Message& message) const {
  const auto& mpi = mpi_functions();
  for (auto& request : message.requests) {
    if (request != mpi.no_request && !place_.sends) mpi.cancel(&request);
  }
  const auto end = Clock::now() + (place_.sends ? std::chrono::milliseconds(0) : kCancelGrace);
  bool is_over = false;
  do {
    mpi.test(message.requests.data(), static_cast<int>(message.requests.size()), &is_over);
  } while (!is_over && Clock::now() < end);
  return is_over;
}

void MpiStream::end(const LinkError& error) {
  while (!messages_.empty()) {
    Messages ended;
    ended.splice(ended.begin(), messages_, messages_.begin());
    const auto done = std::move(ended.front().done);
    // MPI may still read or write the header.
    if (!gives_back(ended.front())) new Messages(std::move(ended));
    done(&error);
  }
}

}  // namespace tutti
