// Workers that connect to a broker, and say who they are.

#include <sys/socket.h>

#include <cerrno>

#include <fmt/format.h>

#include "job/rendezvous/broker_state.h"

namespace tutti {

void BrokerState::accept_strangers() {
  for (int accepted = 0; listener && accepted < kMaxAccepted; ++accepted) {
    FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // The program has closed it, as closefrom(3) does.
    if (!socket && errno == EBADF) listener.release();
    if (!socket) break;
    if (!is_own_stream(socket.get())) continue;
    strangers.emplace_back().socket = std::move(socket);
  }
  std::erase_if(strangers, [this](Line& stranger) { return introduce(stranger); });
}

/// True when nothing is left to hear of a stranger, because it has become a worker or is refused.
bool BrokerState::introduce(Line& stranger) {
  Frame frame;
  switch (stranger.reader.read(stranger.socket.get(), frame)) {
    case FrameStatus::again:
      return false;
    case FrameStatus::done:
      break;
    default:
      return true;
  }
  const FrameHeader& said = frame.header;
  const int size = static_cast<int>(lines.size());
  if (said.kind != FrameHeader::hello || said.number < 0 || said.number >= said.total) return true;
  FrameHeader header;
  std::string text;
  if (said.total != size) {
    header.kind = FrameHeader::broken;
    text = fmt::format("rank {} was started as one of {} workers, rank 0 as one of {}", said.number,
                       said.total, size);
  } else if (!is_here(said.number)) {
    return true;
  } else {
    header.kind = line(said.number).came ? FrameHeader::taken : FrameHeader::welcome;
  }
  const auto map = std::make_shared<Parcel>();
  if (header.kind == FrameHeader::welcome) {
    map->bytes = order.map().bytes();
    text = order.run();
  }
  stranger.writer.push(header, std::move(text), map.get(), map);
  stranger.writer.write(stranger.socket.get());
  if (header.kind == FrameHeader::welcome) {
    stranger.came = true;
    line(said.number) = std::move(stranger);
  }
  return true;
}

}  // namespace tutti
