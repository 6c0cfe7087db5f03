#include "support/simulated_link.h"

#include <utility>

#include <fmt/format.h>

#include "support/simulated_state.h"

namespace tutti {

/// One peer's link: all it does is State's.
class SimulatedNetwork::Participant final : public Link {
 public:
  Participant(std::shared_ptr<State> state, int peer)
      : Link(peer, state->options().peers, state->options().lanes), state_(std::move(state)) {
    state_->attach(peer);
  }
  ~Participant() override { state_->detach(self()); }

  std::string description() const override {
    return fmt::format("simulated, {}, {} peers, {} lanes",
                       state_->options().modelled ? "modelled" : "immediate", peers(), lanes());
  }
  bool needs_progress() const override { return state_->options().modelled; }
  bool progress(Deadline deadline) override {
    return needs_progress() && state_->progress(self(), deadline);
  }

 protected:
  void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
    state_->send(self(), peer, lane, bytes, std::move(done));
  }
  void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
    state_->receive(self(), peer, lane, bytes, std::move(done));
  }

 private:
  std::shared_ptr<State> state_;
};

SimulatedNetwork::SimulatedNetwork(SimulatedOptions options)
    : state_(std::make_shared<State>(std::move(options))) {}
SimulatedNetwork::~SimulatedNetwork() = default;

std::unique_ptr<Link> SimulatedNetwork::link(int peer) {
  return std::make_unique<Participant>(state_, peer);
}
void SimulatedNetwork::kill(int peer) { state_->kill(peer); }
void SimulatedNetwork::silence(int peer) { state_->silence(peer); }
std::chrono::nanoseconds SimulatedNetwork::now() const { return state_->now(); }
void SimulatedNetwork::at(std::chrono::nanoseconds time, std::function<void()> action) {
  state_->at(time, std::move(action));
}
bool SimulatedNetwork::step() { return state_->step(); }
void SimulatedNetwork::run_until_idle() {
  while (step()) {
  }
}
SimulatedNetwork::Delivered SimulatedNetwork::delivered(int from, int to) const {
  return state_->delivered(from, to);
}

}  // namespace tutti
