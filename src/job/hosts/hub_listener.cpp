#include <fmt/format.h>

#include "job/hosts/host_connections.h"
#include "job/hosts/hub_join.h"
#include "job/hosts/tcp_socket.h"
#include "tutti/error.h"

namespace tutti {

HubListener::HubListener(const std::string& address, int port) : socket_(listen_on(address, port)) {
  port_ = own_address(socket_).port();
  address_ = tcp_text(address, port_);
}

ConnectedHosts HubListener::accept_all(const HostIntroduction& own, Deadline deadline,
                                       const Patience& patience) {
  require_introduction(own);
  if (own.ranks.front() != 0)
    throw InvalidArgument(fmt::format("the hub is the host of rank 0, which {} is not",
                                      host_text(own.name, own.ranks)));
  return HubJoin(socket_, address_, own, deadline, patience).run();
}

}  // namespace tutti
