#include "apps/tutti/doctor/doctor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/tutti/doctor/doctor_report.h"
#include "apps/tutti/doctor/machine_facts.h"
#include "base/system.h"

namespace tutti::command {

int doctor(bool json) {
  const auto system = host_system();
  const MachineFacts facts = gather_facts(*system);
  const Verdict verdict = judge(facts);
  fmt::print("{}", json ? as_json(facts, verdict).dump(2) + "\n" : as_text(facts, verdict));
  return verdict.problems.empty() ? 0 : 1;
}

}  // namespace tutti::command
