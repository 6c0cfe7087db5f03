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
};

/// TUTTI_HUB, TUTTI_TOKEN and TUTTI_INTERFACE, or the launcher's address where TUTTI_HUB has a port
/// alone. Throws where one of the first two is missing.
HubSettings hub_of(const Environment& environment);

}  // namespace tutti
