// Offers Gloo as the engine of a program's links (comm/link/link_engine.h), by being linked with
// it: CMakeLists.txt has the linker take this in.

#include <fmt/format.h>

#include "c10d/gloo_link.h"
#include "comm/link/link_engine.h"
#include "comm/link/tcp_link.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Throws Unsupported where TUTTI_LINK asks for Gloo and this build has none.
LinkEngine gloo_engine() {
  const auto environment = Environment::read();
  const bool is_asked = environment.link == "gloo";
  if (const auto why = why_no_gloo(); !why.empty()) {
    if (is_asked) throw Unsupported("TUTTI_LINK is gloo, but " + why);
    return tcp_link_engine("TUTTI_LINK is auto; no Gloo: " + why);
  }
  const auto reason =
      fmt::format("{}; bound to the address {}",
                  is_asked ? "TUTTI_LINK is gloo" : "TUTTI_LINK is auto, and this build has Gloo",
                  environment.interface.empty()
                      ? "from which the hub is reached"
                      : fmt::format("of {} (TUTTI_INTERFACE)", environment.interface));
  return {"gloo",
          [](const LinkRequest& request) {
            return make_gloo_link({.self = request.self,
                                   .peers = request.peers,
                                   .lanes = request.lanes,
                                   .address = request.address,
                                   .deadline = request.deadline},
                                  request.exchange);
          },
          reason};
}

const bool is_offered = (offer_link_engine(gloo_engine), true);

}  // namespace
}  // namespace tutti

// What the linker looks for.
extern "C" {
extern const bool tutti_offers_gloo;
const bool tutti_offers_gloo = tutti::is_offered;
}
