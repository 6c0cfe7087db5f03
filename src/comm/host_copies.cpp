#include "comm/host_copies.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "comm/group_state.h"
#include "comm/local/group_lanes.h"
#include "job/publish.h"
#include "job/wait.h"

namespace tutti {
namespace {

/// The most bytes of a message: no engine has trouble with that many.
constexpr std::size_t kMessageBytes = std::size_t{64} << 20;

}  // namespace

void copy_to_hosts(const Group& group, std::span<const HostPiece> pieces,
                   const CollectiveOptions& options) {
  if (group.state()->spans_hosts()) group.state()->copies().copy(group, pieces, options);
}

void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options) {
  const HostPiece piece{.at = at, .bytes = bytes};
  copy_to_hosts(group, {&piece, 1}, options);
}

PostedPieces::PostedPieces(const GroupState& state, HostLink& link, int lane)
    : state_(state), link_(link), lane_(lane), open_(state.hosts()) {}

void PostedPieces::post(std::span<const HostPiece> pieces) {
  const int here = state_.host_of(state_.rank());
  for (const auto& piece : pieces) {
    const int from = state_.host_of(piece.member);
    const std::span whole(piece.at, piece.bytes);
    for (std::size_t begin = 0; begin < whole.size(); begin += kMessageBytes) {
      const auto part = whole.subspan(begin, std::min(kMessageBytes, whole.size() - begin));
      if (from != here) {
        link_.receive(lane_, from, part, open_.add(from));
        continue;
      }
      for (int host = 0; host < state_.hosts(); ++host) {
        if (host != here) link_.send(lane_, host, part, open_.add(host));
      }
    }
  }
}

RankSet PostedPieces::missing() const {
  RankSet late;
  for (int host = 0; host < state_.hosts(); ++host) {
    if (open_.any(host)) late.insert(state_.first_of(host));
  }
  return late;
}

void HostCopies::copy(const Group& group, std::span<const HostPiece> pieces,
                      const CollectiveOptions& options) {
  group.barrier(options);
  if (state_.team().rank == 0) send_and_receive(pieces, options);
  group.barrier(options);
}

/// A failure ends the group, so that those who wait for this member have the same error.
void HostCopies::send_and_receive(std::span<const HostPiece> pieces,
                                  const CollectiveOptions& options) {
  JobState& job = state_.job();
  HostLink& link = state_.link();
  const auto what =
      fmt::format("copy of \"{}\" to other hosts, group \"{}\"", options.label, state_.name());
  if (!pieces_) pieces_ = std::make_unique<PostedPieces>(state_, link, HostChannel::kCopies);
  try {
    link.connect();
    pieces_->post(pieces);
    const auto ready = [&] {
      link.check();
      return pieces_->are_done();
    };
    wait_until(job, ready, [&] {
      return WaitSubject{.missing = [&] { return pieces_->missing(); },
                         .members = state_.members(),
                         .what = [&] { return what; },
                         .check = [&] { state_.collectives().check(); },
                         .deadline = job.deadline(options.deadline)};
    });
  } catch (...) {
    link.drop();
    pieces_->forget();
    state_.collectives().end_with_current_exception();
    throw;
  }
}

}  // namespace tutti
