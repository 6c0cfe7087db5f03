// No Tutti and no second process: one with as many threads as there are workers elsewhere, and all
// their batches in one. What a user has who changes nothing.

#include "common/control.h"
#include "step/worker.h"

int main(int count, char** arguments) {
  if (count != 5) bench::fail("usage: bench_step_process SOCKET MODEL OPTIMIZER THREADS");
  const auto wrap = [](torch::nn::Module&) { return [] {}; };
  bench::train(arguments[1], arguments[2], 0, bench::torch_loop(arguments[3], 0, wrap),
               std::stoi(arguments[4]));
}
