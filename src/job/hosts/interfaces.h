#pragma once

// The network interfaces of this host, by the names that `ip address` prints.
//
// Threads: any. Failure: InvalidArgument for a name that there is not.

#include <string>

namespace tutti {

/// The address of an interface that is up: IPv4 where it has one, else IPv6. The error lists the
/// interfaces that there are.
std::string address_of_interface(const std::string& name);

/// "lo 127.0.0.1, lo ::1, eth0 10.0.0.1": all that are up and have an address.
std::string interfaces_text();

}  // namespace tutti
