#include "comm/group_state.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/channels.h"
#include "comm/host_link.h"
#include "comm/local/group_lanes.h"
#include "comm/posted_pieces.h"

namespace tutti {

GroupState::GroupState(std::shared_ptr<JobState> job, std::vector<int> ranks, std::string name,
                       const GroupOptions& options, std::function<void()> check)
    : Communicator(std::move(job), std::move(ranks), std::move(name), options, std::move(check)) {
  const auto make_way = [this](std::vector<int> pair, std::string way_name,
                               const std::function<void()>& way_check) {
    auto way = std::make_shared<GroupState>(shared_job(), std::move(pair), std::move(way_name),
                                            kOneLane, way_check);
    if (way->spans_hosts()) way->link().connect(way_check);
    return way;
  };
  channels_ = std::make_unique<Channels>(*this, make_way);
  if (!spans_hosts()) return;
  link_ = std::make_unique<HostLink>(
      *this, HostLink::Options{.name = fmt::format("group {} of ranks {}", this->name(),
                                                   fmt::join(this->ranks(), " ")),
                               .lanes = HostChannel::lanes(options.lanes)});
  copies_ = std::make_unique<PostedPieces>(*this, *link_, HostChannel::kCopies);
  collectives().use(*link_);
}

GroupState::~GroupState() = default;

}  // namespace tutti
