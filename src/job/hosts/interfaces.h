#pragma once

// The network interfaces of this host, by the names that `ip address` prints.
//
// Threads: any. Failure: InvalidArgument for a name that there is not.

#include <string>

namespace tutti {

/// The address of an interface that is up: IPv4 where it has one, else IPv6. The error lists the
/// interfaces that there are.
std::string address_of_interface(const std::string& name);

/// The address of this host from which it reaches that address or name; nothing is sent. The error
/// names what cannot be reached.
std::string address_towards(const std::string& peer);

/// "lo 127.0.0.1, lo ::1, eth0 10.0.0.1": all that are up and have an address.
std::string interfaces_text();

}  // namespace tutti
