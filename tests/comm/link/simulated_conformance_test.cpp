// The conformance suite over the simulated link, without delays and with them.

#include "comm/link/link_conformance.h"
#include "comm/link/link_conformance_failure.h"
#include "support/simulated_link.h"

namespace tutti::test {
namespace {

using std::chrono::microseconds;

class SimulatedWorld final : public ThreadLinkWorld {
 public:
  explicit SimulatedWorld(SimulatedOptions options) : options_(std::move(options)) {}

 protected:
  Make start(int peers, int lanes) override {
    options_.peers = peers;
    options_.lanes = lanes;
    // All take part from the start: a thread that comes late holds the clock.
    auto links = std::make_shared<std::vector<std::unique_ptr<Link>>>();
    SimulatedNetwork network(options_);
    for (int peer = 0; peer < peers; ++peer) links->push_back(network.link(peer));
    return [links](int peer) { return std::move((*links)[peer]); };
  }

 private:
  SimulatedOptions options_;
};

LinkWorldCase world_of(const char* name, const SimulatedOptions& options) {
  return {name, [options] { return std::make_unique<SimulatedWorld>(options); }};
}

INSTANTIATE_TEST_SUITE_P(
    Simulated, LinkConformance,
    ::testing::Values(
        world_of("Immediate", {}),
        world_of("Modelled", {.modelled = true,
                              .seed = 5,
                              .path = {microseconds(50), microseconds(200), 1.25e8},
                              .lanes_overtake = true,
                              .notice = microseconds(500)}),
        world_of("ModelledUnevenly",
                 {.modelled = true,
                  .seed = 6,
                  .path_of =
                      [](int from, int to) {
                        return SimulatedPath{microseconds(1 + 40 * from), microseconds(3 * to), 0};
                      }})),
    name_of);

}  // namespace
}  // namespace tutti::test
