#include "apps/tutti/run/worker_environment.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <utility>

namespace tutti::command {

std::vector<std::string> environment_of(const WorkerEnvironment& worker,
                                        const std::vector<std::string>& inherited) {
  std::vector<std::pair<std::string_view, std::string>> ours = {
      {"TUTTI_RANK", fmt::to_string(worker.rank)},
      {"TUTTI_SIZE", fmt::to_string(worker.size)},
      {"TUTTI_RESTART", fmt::to_string(worker.restart)},
      {"TUTTI_HOSTS", worker.hosts},
      {"TUTTI_RUN", worker.run},
      {"TUTTI_RENDEZVOUS_FD", fmt::to_string(worker.rendezvous_fd)},
      {"TUTTI_THREADS", fmt::to_string(worker.threads)},
      {"OMP_NUM_THREADS", fmt::to_string(worker.threads)},
      {"MKL_NUM_THREADS", fmt::to_string(worker.threads)},
  };
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) ours.emplace_back(name, value);
  };
  add("TUTTI_DEADLINE", worker.deadline);
  add("TUTTI_PROFILE", worker.profile);
  add("TUTTI_HUB", worker.hub);
  add("TUTTI_INTERFACE", worker.interface);
  add("TUTTI_LINK", worker.link);
  add("TUTTI_LANES", worker.lanes);
  for (const auto& [name, value] : worker.libraries) ours.emplace_back(name, value);

  std::vector<std::string> result;
  for (const std::string& variable : inherited) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    const bool replaced =
        std::any_of(ours.begin(), ours.end(), [&](const auto& own) { return own.first == name; });
    if (!replaced) result.push_back(variable);
  }
  for (const auto& [name, value] : ours)
    if (!value.empty() || name != "TUTTI_HOSTS")
      result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::vector<std::string> process_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable && *variable; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

}  // namespace tutti::command
