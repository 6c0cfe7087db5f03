#include "comm/host_copies.h"

#include <fmt/format.h>

#include "comm/group_state.h"
#include "comm/local/group_lanes.h"
#include "job/wait.h"

namespace tutti {
namespace {

/// A failure ends the group, so that those who wait for this member have the same error.
void send_and_receive(const GroupState& group, std::span<const HostPiece> pieces,
                      const CollectiveOptions& options) {
  JobState& job = group.job();
  HostLink& link = group.link();
  PostedPieces& posted = group.copies();
  auto what =
      fmt::format("copy of \"{}\" to other hosts, group \"{}\"", options.label, group.name());
  try {
    link.connect();
    posted.post(pieces);
    const auto ready = [&] {
      link.check();
      return posted.are_done();
    };
    wait_until(job, ready, [&] {
      return WaitSubject{.missing = [&] { return posted.missing(); },
                         .members = group.members(),
                         .what = [&] { return what; },
                         .check = [&] { group.collectives().check(); },
                         .deadline = job.deadline(options.deadline)};
    });
  } catch (...) {
    link.drop();
    posted.forget();
    group.collectives().end_with_current_exception();
    throw;
  }
}

}  // namespace

void copy_to_hosts(const Group& group, std::span<const HostPiece> pieces,
                   const CollectiveOptions& options) {
  if (!group.state()->spans_hosts()) return;
  group.barrier(options);
  if (group.state()->team().rank == 0) send_and_receive(*group.state(), pieces, options);
  group.barrier(options);
}

void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options) {
  const HostPiece piece{.at = at, .bytes = bytes};
  copy_to_hosts(group, {&piece, 1}, options);
}

}  // namespace tutti
