#include "job/host_address.h"

#include "job/hosts/interfaces.h"

namespace tutti {

std::string address_for_hosts(const Environment& environment) {
  if (!environment.interface.empty()) return address_of_interface(environment.interface);
  std::string hub = environment.hub ? environment.hub->address : "";
  if (hub.empty() && environment.launcher) hub = environment.launcher->address;
  return hub.empty() ? "127.0.0.1" : address_towards(hub);
}

}  // namespace tutti
