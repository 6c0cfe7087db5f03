#pragma once

// `tutti doctor --hosts`: whether the workers of several hosts can be one job, as far as it can be
// told before they start. What `tutti doctor --json` prints on each is compared.
//
// Threads: one. Failure: Refusal for a list of hosts that makes no sense.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tutti::command {

struct HostCheck {
  enum class Grade { ok, warning, error };
  Grade grade = Grade::ok;
  std::string what;  ///< "libtorch"
  std::string text;  ///< names the hosts
};

/// A host's answer; `problem` tells why there is none.
struct HostAnswer {
  std::string name;
  nlohmann::json facts;
  std::string problem = {};
};

/// Each host against the first one that has answered. Pure.
std::vector<HostCheck> compare_hosts(const std::vector<HostAnswer>& hosts);

}  // namespace tutti::command
