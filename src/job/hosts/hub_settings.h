#pragma once

// What users and launchers say about where the hosts of a job meet.
//
// Threads: pure functions, but for the list of interfaces. Failure: InvalidArgument that names the
// variables.

#include <string>

#include "job/hosts/host_connections.h"
#include "tutti/environment.h"

namespace tutti {

struct HubSettings {
  HubAddress hub;
  std::string token;
  std::string choice = {};  ///< where both are from, for the log
  std::string advice = {};  ///< what else can be chosen where the port is in use
};

/// TUTTI_HUB, TUTTI_TOKEN and TUTTI_INTERFACE. Where TUTTI_HUB has a port alone, the address is the
/// launcher's. A launcher that has a port of its own there (torchrun) is enough without the first
/// two: the port is the next one, and the token is made of what it gives to all workers, which
/// keeps jobs apart and is no secret. Throws where one is missing.
HubSettings hub_of(const Environment& environment);

}  // namespace tutti
