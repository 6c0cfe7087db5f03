#include "comm/posted_pieces.h"

#include <algorithm>

namespace tutti {
namespace {

/// The most bytes of a message: no engine has trouble with that many.
constexpr std::size_t kMessageBytes = std::size_t{64} << 20;

}  // namespace

PostedPieces::PostedPieces(const Communicator& group, HostLink& link, int lane)
    : group_(group), link_(link), lane_(lane), open_(group.hosts()) {}

void PostedPieces::post(std::span<const HostPiece> pieces) {
  const int here = group_.host_of(group_.rank());
  for (const auto& piece : pieces) {
    const int from = group_.host_of(piece.member);
    const std::span whole(piece.at, piece.bytes);
    for (std::size_t begin = 0; begin < whole.size(); begin += kMessageBytes) {
      const auto part = whole.subspan(begin, std::min(kMessageBytes, whole.size() - begin));
      if (from != here) {
        link_.receive(lane_, from, part, open_.add(from));
        continue;
      }
      for (int host = 0; host < group_.hosts(); ++host) {
        if (host != here) link_.send(lane_, host, part, open_.add(host));
      }
    }
  }
}

RankSet PostedPieces::missing() const {
  RankSet late;
  for (int host = 0; host < group_.hosts(); ++host) {
    if (open_.any(host)) late.insert(group_.first_of(host));
  }
  return late;
}

}  // namespace tutti
