#pragma once

// What the machine's facts mean for training. Pure.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/tutti/doctor/machine_facts.h"

namespace tutti::command {

struct Verdict {
  std::vector<std::string> problems;  ///< stop training
  std::vector<std::string> notes;     ///< cost speed only
};

Verdict judge(const MachineFacts& facts);

/// The report for people: one fact per line, then the verdict.
std::string as_text(const MachineFacts& facts, const Verdict& verdict);

nlohmann::json as_json(const MachineFacts& facts, const Verdict& verdict);

}  // namespace tutti::command
