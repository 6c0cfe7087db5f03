#include "job/life/first_failure.h"

#include <poll.h>
#include <sys/socket.h>

#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/error_kind.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kHelloTickMs = 10;

struct HelloLine {
  FileDescriptor socket;
  FrameReader reader;
};

/// Inside a handler: what tells its exception.
Frame frame_of_failure(int first) {
  Frame frame;
  std::string text = "of an unknown reason";
  try {
    throw;
  } catch (const PeerLost& lost) {
    frame.header.kind = FrameHeader::lost;
    frame.header.number = lost.rank();
    text = lost.what();
  } catch (const Timeout& timeout) {
    frame.header.kind = FrameHeader::timed_out;
    text = timeout.what();
  } catch (const std::exception& error) {
    const ErrorKind kind = error_kind();
    frame.header.kind = FrameHeader::failed;
    frame.header.number = static_cast<std::int32_t>(kind.which);
    frame.header.total = kind.code;
    text = error.what();
  } catch (...) {
    frame.header.kind = FrameHeader::failed;
  }
  frame.text = fmt::format("rank {}, through which this host joins, failed: {}", first, text)
                   .substr(0, kMaxFrameText);
  return frame;
}

/// True when nothing is left to do for a connection: its worker was told, or it is none.
bool answer_hello(HelloLine& from, const Frame& failure, RankSet& told) {
  Frame hello;
  const auto status = from.reader.read(from.socket.get(), hello);
  if (status == FrameStatus::again) return false;
  const int rank = hello.header.number;
  if (status != FrameStatus::done || hello.header.kind != FrameHeader::hello || rank < 0 ||
      rank >= kMaxWorkers) {
    return true;
  }
  FrameWriter writer;
  writer.push(failure.header, failure.text, nullptr, nullptr);
  writer.write(from.socket.get());  // a new connection has room for it
  told.insert(rank);
  return true;
}

}  // namespace

void tell_failure(const FileDescriptor& listener, int first, int others) noexcept try {
  const Frame failure = frame_of_failure(first);
  const auto end = Clock::now() + kLastWords;
  std::vector<HelloLine> open;
  RankSet told;
  while (told.size() < others && Clock::now() < end) {
    pollfd polled{listener.get(), POLLIN, 0};
    ::poll(&polled, 1, kHelloTickMs);
    for (int accepted = 0; accepted < kMaxAccepted; ++accepted) {
      FileDescriptor socket(
          ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) break;
      if (is_own_stream(socket.get())) open.push_back({std::move(socket), {}});
    }
    std::erase_if(open, [&](HelloLine& from) { return answer_hello(from, failure, told); });
  }
} catch (...) {  // without memory the others wait for their deadline
}

void throw_if_failed(const Frame& answer) {
  const FrameHeader& header = answer.header;
  if (header.kind == FrameHeader::lost) throw PeerLost(header.number, answer.text);
  if (header.kind == FrameHeader::timed_out) throw Timeout(answer.text);
  if (header.kind != FrameHeader::failed) return;
  std::rethrow_exception(
      make_error({static_cast<ErrorClass>(header.number), header.total}, answer.text));
}

}  // namespace tutti
