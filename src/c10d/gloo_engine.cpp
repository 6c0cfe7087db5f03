#include "c10d/gloo_engine.h"

#include <fmt/format.h>

#include "c10d/gloo_link.h"
#include "comm/link/link_engine.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {

void offer_gloo_links() {
  if (!link_engine().name.empty()) return;
  const auto environment = Environment::read();
  const bool is_asked = environment.link == "gloo";
  if (!is_asked && environment.link != "auto") return;
  if (const auto why = why_no_gloo(); !why.empty()) {
    if (is_asked) throw Unsupported("TUTTI_LINK is gloo, but " + why);
    set_link_engine({.name = "", .reason = why});
    return;
  }
  const auto reason =
      fmt::format("{}; bound to the address {}",
                  is_asked ? "TUTTI_LINK is gloo" : "TUTTI_LINK is auto, and this build has Gloo",
                  environment.interface.empty()
                      ? "from which the hub is reached"
                      : fmt::format("of {} (TUTTI_INTERFACE)", environment.interface));
  set_link_engine({"gloo",
                   [](const LinkRequest& request) {
                     return make_gloo_link({.self = request.self,
                                            .peers = request.peers,
                                            .lanes = request.lanes,
                                            .address = request.address,
                                            .deadline = request.deadline},
                                           request.exchange);
                   },
                   reason});
}

}  // namespace tutti
