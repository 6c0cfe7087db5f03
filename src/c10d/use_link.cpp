#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "c10d/backend_link.h"
#include "c10d/pipe_signal.h"
#include "comm/link/link_collectives.h"
#include "comm/link/link_engine.h"
#include "tutti/environment.h"
#include "tutti/error.h"
#include "tutti/link.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 4> kKnown = {"auto", "gloo", "mpi", "tcp"};

std::unique_ptr<Link> make_own_link(const std::string& name, const MakeBackends& make,
                                    const LinkRequest& request) {
  const LinkPlace place{request.name, request.self, request.peers, request.lanes};
  auto backends = [&] {
    const WithoutSignals without;  // threads that are started here may write to closed sockets
    return make(place);
  }();
  if (static_cast<int>(backends.size()) != place.lanes) {
    throw InvalidArgument(
        fmt::format("the link \"{}\" needs a backend for each of its {} lanes, and has {}", name,
                    place.lanes, backends.size()));
  }
  for (const auto& backend : backends) {
    if (!backend) throw InvalidArgument(fmt::format("a backend of the link \"{}\" is null", name));
    if (backend->getRank() == place.host && backend->getSize() == place.hosts) continue;
    throw InvalidArgument(
        fmt::format("a backend of the link \"{}\" has rank {} of {}, and has to have rank {} of {}",
                    name, backend->getRank(), backend->getSize(), place.host, place.hosts));
  }
  auto link = make_backend_link(std::move(backends), name);
  self_test(*link, request.deadline);
  return link;
}

}  // namespace

void use_link(const std::string& name, MakeBackends make) {
  if (name.empty() || std::ranges::find(kKnown, name) != kKnown.end()) {
    throw InvalidArgument(fmt::format(
        "use_link(\"{}\"): must be a name of the program's own, and none of auto, gloo, mpi, tcp",
        name));
  }
  if (!make) throw InvalidArgument(fmt::format("use_link(\"{}\"): no function is given", name));
  if (const auto asked = Environment::read().link; asked != "auto") {
    throw InvalidArgument(fmt::format(
        "use_link(\"{}\"): TUTTI_LINK is {}, which asks for another link; leave it at auto", name,
        asked));
  }
  if (link_engine_is_used()) {
    throw InvalidArgument(fmt::format(
        "use_link(\"{}\"): links between hosts are made already: call it before the first Trainer "
        "or DataParallel",
        name));
  }
  set_link_engine({name,
                   [name, make = std::move(make)](const LinkRequest& request) {
                     return make_own_link(name, make, request);
                   },
                   "the program has called use_link()"});
}

}  // namespace tutti
