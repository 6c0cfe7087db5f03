#include "comm/host_link.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "comm/link/link_engine.h"
#include "job/gather.h"
#include "job/host_address.h"
#include "tutti/environment.h"

namespace tutti {

std::unique_ptr<Link> make_host_link(const Group& group, const std::string& what, int lanes,
                                     std::optional<std::chrono::milliseconds> deadline) {
  const auto firsts = group.state()->first_of_hosts();
  if (!firsts) return nullptr;
  JobState& job = firsts->job();
  const auto name = fmt::format("link {} of {}", job.next_number("link of " + what), what);
  int round = 0;
  return link_engine().make({.name = name,
                             .self = firsts->rank(),
                             .peers = firsts->size(),
                             .lanes = lanes,
                             .address = address_for_hosts(Environment::read()),
                             .deadline = job.deadline(deadline),
                             .exchange = [&job, &firsts, &name, &round](const std::string& mine) {
                               const auto tag = fmt::format("{}, round {}", name, round++);
                               std::vector<std::string> all;
                               for (auto& parcel : gather(job, tag, firsts->ranks(), {mine, {}})) {
                                 all.push_back(std::move(parcel.bytes));
                               }
                               return all;
                             }});
}

bool have_host_links(const Group& group) {
  const auto mine = link_engine().name;
  const auto all = gather_bytes(group, std::as_bytes(std::span(mine)), {});
  JobState& job = group.state()->job();
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::string name(reinterpret_cast<const char*>(all[r].data()), all[r].size());
    if (!name.empty() && name == mine) continue;
    if (group.rank() == 0 && job.is_news("links between hosts")) {
      log().warn(
          "what hosts send one another takes the way of short messages, which is slower: the "
          "program of rank {} has {}",
          group.job_rank(static_cast<int>(r)),
          name.empty() ? "no engine for links" : fmt::format("links over {}", name));
    }
    return false;
  }
  return true;
}

}  // namespace tutti
