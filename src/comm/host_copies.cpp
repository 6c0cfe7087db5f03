#include "comm/host_copies.h"

#include <cstdint>

#include "comm/group_state.h"
#include "job/publish.h"

namespace tutti {

void send_to_hosts(const Group& group, const void* at, std::size_t bytes) {
  send_ahead(group.state()->job(), {{at, bytes}});
}

void copy_to_hosts(const Group& group, std::byte* at, std::size_t bytes,
                   const CollectiveOptions& options) {
  GroupState& state = *group.state();
  if (!state.spans_hosts()) return;
  if (const auto firsts = state.first_of_hosts()) {
    Group(firsts).broadcast({at, static_cast<std::int64_t>(bytes), DType::uint8}, 0, options);
  }
  group.barrier(options);
}

}  // namespace tutti
