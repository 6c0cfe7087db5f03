#include "c10d/gloo_engine.h"

#include "c10d/gloo_link.h"
#include "comm/link/link_engine.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {

void offer_gloo_links() {
  if (!link_engine().name.empty()) return;
  const auto environment = Environment::read();
  if (environment.link == "hub") return;
  if (const auto why = why_no_gloo(); !why.empty()) {
    if (environment.link == "gloo") throw Unsupported("TUTTI_LINK is gloo, but " + why);
    return;
  }
  set_link_engine({"gloo", [](const LinkRequest& request) {
                     return make_gloo_link({.self = request.self,
                                            .peers = request.peers,
                                            .lanes = request.lanes,
                                            .address = request.address,
                                            .deadline = request.deadline},
                                           request.exchange);
                   }});
}

}  // namespace tutti
