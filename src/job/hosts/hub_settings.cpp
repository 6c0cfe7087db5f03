#include "job/hosts/hub_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "job/hosts/interfaces.h"
#include "tutti/error.h"

namespace tutti {

HubSettings hub_of(const Environment& environment) {
  std::vector<std::string> missing;
  if (!environment.hub) missing.emplace_back("TUTTI_HUB (address:port at the host of rank 0)");
  if (environment.token.empty()) missing.emplace_back("TUTTI_TOKEN (a secret of this job)");
  if (!missing.empty())
    throw InvalidArgument(fmt::format(
        "to find one another the hosts of a job need what is not set: {}; the same on all of them",
        fmt::join(missing, " and ")));
  HubSettings settings{{environment.hub->address, environment.hub->port}, environment.token};
  if (settings.hub.address.empty() && environment.launcher)
    settings.hub.address = environment.launcher->address;
  if (settings.hub.address.empty())
    throw InvalidArgument(fmt::format(
        "TUTTI_HUB is \":{}\", without an address, and {} does not tell that of the "
        "host of rank 0",
        settings.hub.port, environment.launcher ? environment.launcher->name : "no launcher"));
  if (!environment.interface.empty()) {
    try {
      settings.hub.from = address_of_interface(environment.interface);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("TUTTI_INTERFACE: {}", error.what()));
    }
  }
  return settings;
}

}  // namespace tutti
