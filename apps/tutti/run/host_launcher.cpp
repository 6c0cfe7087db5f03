#include "apps/tutti/run/host_launcher.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>

#include "apps/tutti/run/host_environment.h"
#include "apps/tutti/run/host_record.h"
#include "apps/tutti/run/hosts_list.h"
#include "apps/tutti/text/refusal.h"
#include "apps/tutti/text/say.h"
#include "base/helper_thread.h"
#include "job/hosts/broker_hosts.h"
#include "job/hosts/interfaces.h"
#include "job/hosts/tcp_socket.h"
#include "tutti/error.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

void end_with_input() {
  start_helper_thread("tutti-input", [] {
    char bytes[64];
    ssize_t got = 0;
    do {
      got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    } while (got > 0 || (got < 0 && errno == EINTR));
    ::kill(::getpid(), SIGTERM);
  }).detach();
}

std::string own_address_of(const RunPlan& plan) {
  return plan.options.interface.empty() ? "" : address_of_interface(plan.options.interface);
}

/// Nothing where the system cannot tell.
std::optional<bool> is_loopback(const std::string& name) {
  std::string problem;
  const auto addresses = resolve(name, 0, problem);
  if (addresses.empty()) return {};
  return addresses.front().is_loopback();
}

/// As TUTTI_HUB has it.
std::string hub_text(const std::string& address, int port) {
  const bool is_6 = address.find(':') != std::string::npos;
  return is_6 ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

/// The address of the hub, which all hosts have to reach.
std::string hub_address(const RunPlan& plan, const std::vector<HostEntry>& hosts) {
  if (auto address = own_address_of(plan); !address.empty()) return address;
  const std::string& hub = hosts.front().name;
  if (is_loopback(hub) == true) {
    for (const HostEntry& host : hosts) {
      if (host.name != hub && is_loopback(host.name) == false)
        throw Refusal(1, fmt::format("host {} has an address here that host {} cannot reach: give "
                                     "another in --hosts, or --interface",
                                     hub, host.name));
    }
  }
  return hub;
}

HostIntroduction introduction(const RunPlan& plan, const std::vector<HostEntry>& hosts,
                              std::string token) {
  const RunOptions& options = plan.options;
  const HostEntry& own = hosts[static_cast<std::size_t>(*options.host_index)];
  return {
      .run = plan.run,
      .token = std::move(token),
      .name = own.name,
      .size = plan.size,
      .ranks = own.ranks(),
      .attempt = options.host_attempt,
      .facts = fmt::format("tutti {}, {}, threads {}, cpu {}", TUTTI_VERSION, facts_of_hosts(),
                           options.threads, options.cpu.empty() ? "as inherited" : options.cpu)};
}

}  // namespace

JoinedHosts join_hosts(const RunPlan& plan, const std::string& token, SignalInbox& signals) {
  const auto hosts = parse_hosts(plan.options.hosts);
  JoinedHosts joined;
  const auto own = introduction(plan, hosts, token);
  const Patience patience = [&] {
    if (const auto signal = signals.next()) joined.interrupted_by = *signal;
    return joined.interrupted_by == 0;
  };
  const auto deadline = Deadline::after(Clock::now(), JobOptions{}.join_deadline);
  try {
    if (*plan.options.host_index == 0) {
      end_with_input();
      const auto address = hub_address(plan, hosts);
      HubListener listener(address, plan.options.port);
      say(text_of(HostRecord{.address = address, .port = listener.port()}));
      joined.hub = hub_text(address, listener.port());
      joined.hosts = listener.accept_all(own, deadline, patience);
    } else {
      const auto line = read_input_line();
      if (!line) return {.hosts = {}, .interrupted_by = SIGTERM};
      std::istringstream words(*line);
      HubAddress hub;
      words >> hub.address >> hub.port;
      hub.from = own_address_of(plan);
      joined.hub = hub_text(hub.address, hub.port);
      end_with_input();
      joined.hosts = connect_to_hub(hub, own, deadline, patience);
    }
  } catch (const Timeout&) {
    if (joined.interrupted_by == 0) throw;
  }
  return joined;
}

}  // namespace tutti::command
