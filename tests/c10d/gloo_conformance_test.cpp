// The conformance suite over Gloo: all peers in one process, over 127.0.0.1.

#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "c10d/gloo_link.h"
#include "comm/link/link_conformance.h"
#include "comm/link/link_conformance_failure.h"

namespace tutti::test {
namespace {

class GlooWorld final : public ThreadLinkWorld {
 protected:
  Make start(int peers, int lanes) override {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    return [=](int peer) {
      return make_gloo_link({.self = peer,
                             .peers = peers,
                             .lanes = lanes,
                             .address = "127.0.0.1",
                             .deadline = Deadline::after(Clock::now(), std::chrono::seconds(60))},
                            c10::static_intrusive_pointer_cast<c10d::Store>(store));
    };
  }
};

INSTANTIATE_TEST_SUITE_P(Gloo, LinkConformance,
                         ::testing::Values(LinkWorldCase{
                             "Threads", [] { return std::make_unique<GlooWorld>(); }}),
                         name_of);

}  // namespace
}  // namespace tutti::test
