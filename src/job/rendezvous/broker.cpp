#include "job/rendezvous/broker.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/check.h"
#include "job/rendezvous/broker_state.h"
#include "tutti/error.h"
#include "tutti/limits.h"

namespace tutti {
namespace {

BrokerHosts one_host(int size) {
  if (size < 1 || size > kMaxWorkersPerHost)
    throw InvalidArgument(
        fmt::format("{} workers on one host: must be 1 to {}", size, kMaxWorkersPerHost));
  return {.map = HostMap::one(size)};
}

std::unique_ptr<StopRequest> make_stop() {
  return std::make_unique<StopRequest>("cannot serve workers");
}

}  // namespace

Broker::Broker(int size, FileDescriptor listener) : Broker(one_host(size), std::move(listener)) {}

Broker::Broker(int size) : Broker(one_host(size)) {}

Broker::Broker(BrokerHosts hosts, FileDescriptor listener)
    : state_(std::make_unique<BrokerState>(std::move(hosts))) {
  state_->stop = make_stop();
  state_->lines.resize(static_cast<std::size_t>(state_->order.map().size()));
  state_->listener = std::move(listener);
  state_->start();
}

Broker::Broker(BrokerHosts hosts) : state_(std::make_unique<BrokerState>(std::move(hosts))) {
  state_->stop = make_stop();
  const int size = state_->order.map().size();
  state_->lines.resize(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    if (!state_->is_here(rank)) continue;
    auto& line = state_->line(rank);
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw IoError(errno,
                    fmt::format("cannot make sockets for {} workers: {}", size, error_text(errno)));
    line.socket = FileDescriptor(ends[0]);
    line.worker_end = FileDescriptor(ends[1]);
    TUTTI_CHECK(is_own_stream(ends[0]), "a socket pair of another user");
  }
}

Broker::~Broker() {
  if (!state_->thread.joinable()) return;
  state_->stop->raise();
  state_->thread.join();
}

int Broker::worker_end(int rank) const { return state_->line(rank).worker_end.get(); }

void Broker::close_worker_end(int rank) {
  state_->line(rank).worker_end.reset();
  const bool all_out = std::none_of(state_->lines.begin(), state_->lines.end(),
                                    [](const auto& line) { return bool(line.worker_end); });
  if (all_out && !state_->thread.joinable()) state_->start();
}

FileDescriptor Broker::take_worker_end(int rank) {
  FileDescriptor mine = std::move(state_->line(rank).worker_end);
  state_->lines.clear();
  state_->order.close();
  state_->stop.reset();
  return mine;
}

bool Broker::any_joining() const {
  const std::lock_guard lock(state_->mutex);
  state_->serve();
  return state_->any_gave;
}

bool Broker::any_saves() const {
  const std::lock_guard lock(state_->mutex);
  state_->serve();
  return state_->any_saves;
}

HostTraffic Broker::traffic() const {
  const std::lock_guard lock(state_->mutex);
  return state_->order.traffic();
}

std::vector<Blame> Broker::blames() const {
  const std::lock_guard lock(state_->mutex);
  state_->serve();
  return state_->blames;
}

}  // namespace tutti
