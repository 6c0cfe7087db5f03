#pragma once

// From hosts that have found each other to brokers that are connected.
//
// Threads: pure functions.

#include <string>

#include "job/hosts/host_connections.h"
#include "job/hosts/host_order.h"

namespace tutti {

/// The place of the broker of the host that has `rank`, with its connections.
BrokerHosts broker_hosts(ConnectedHosts joined, int rank);
/// HostIntroduction::facts: what brokers and workers of different builds would misunderstand.
std::string facts_of_hosts();

}  // namespace tutti
