#pragma once

// By which of its addresses other hosts of the job reach this one.
//
// Threads: any. Failure: InvalidArgument for an interface or a name that there is not.

#include <string>

#include "tutti/environment.h"

namespace tutti {

/// The address of TUTTI_INTERFACE, or that from which this host reaches the hub (TUTTI_HUB, or the
/// launcher's address). Where none of them is set all workers are on this machine: 127.0.0.1.
std::string address_for_hosts(const Environment& environment);

}  // namespace tutti
