#include "job/hosts/hub_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "job/hosts/interfaces.h"
#include "tutti/error.h"

namespace tutti {

namespace {

constexpr int kMostPort = 65535;

/// The hub next to the port that the launcher has for itself.
HubSettings beside_the_launcher(const std::string& address, int port) {
  if (port >= kMostPort)
    throw InvalidArgument(fmt::format(
        "MASTER_PORT is {}: the hosts of a job meet at the next port, of which there is none; give "
        "another one, or TUTTI_HUB=:port, on all hosts",
        port));
  HubSettings settings;
  settings.hub = {address, port + 1};
  settings.choice = "the port after MASTER_PORT";
  settings.advice = fmt::format(
      "it was chosen as the one after MASTER_PORT, {}; give another --master-port, or "
      "TUTTI_HUB=:port, on all hosts",
      port);
  return settings;
}

}  // namespace

HubSettings hub_of(const Environment& environment) {
  const auto& launcher = environment.launcher;
  const bool has_port = launcher && launcher->port && !launcher->address.empty();
  std::vector<std::string> missing;
  if (!environment.hub && !has_port)
    missing.emplace_back("TUTTI_HUB (address:port at the host of rank 0)");
  if (environment.token.empty() && !has_port)
    missing.emplace_back("TUTTI_TOKEN (a secret of this job)");
  if (!missing.empty())
    throw InvalidArgument(fmt::format(
        "to find one another the hosts of a job need what is not set: {}; the same on all of them",
        fmt::join(missing, " and ")));
  HubSettings settings;
  if (environment.hub) {
    settings.hub = {environment.hub->address, environment.hub->port};
    settings.choice = "TUTTI_HUB";
  } else {
    settings = beside_the_launcher(launcher->address, *launcher->port);
  }
  if (environment.token.empty()) {
    settings.token = fmt::format("{} {} {}", launcher->name, launcher->job, *launcher->port);
    settings.choice += ", without a secret, as TUTTI_TOKEN is not set";
  } else {
    settings.token = environment.token;
    settings.choice += ", with TUTTI_TOKEN";
  }
  if (settings.hub.address.empty() && launcher) settings.hub.address = launcher->address;
  if (settings.hub.address.empty())
    throw InvalidArgument(
        fmt::format("TUTTI_HUB is \":{}\", without an address, and {} does not tell that of the "
                    "host of rank 0",
                    settings.hub.port, launcher ? launcher->name : "no launcher"));
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
