#pragma once

// The steps of a case's workers, each kind against its model.
//
// Threads: one per worker. Failure: what Tutti throws.

#include <cstdint>
#include <string>

#include "chaos/chaos_program.h"
#include "tutti/group.h"

namespace tutti::test::chaos {

struct StepsOfCase {
  std::uint64_t seed;
  std::string name;
  ModelSteps& model;
  const Reports& reports;
};

void run_dense(const Group& group, const StepsOfCase& steps);
void run_large(const Group& group, const StepsOfCase& steps);
void run_backward(const Group& group, const StepsOfCase& steps);
void run_rows(const Group& group, const StepsOfCase& steps);
void run_coded(const Group& group, const StepsOfCase& steps);
void run_averaged(const Group& group, const StepsOfCase& steps);
void run_replicas(const Group& group, const StepsOfCase& steps);

}  // namespace tutti::test::chaos
