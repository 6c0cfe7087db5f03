// No Tutti and no other process: one with as many threads as there are workers elsewhere, and all
// their batches in one. What a user has who changes nothing. With RANK it is one of several that
// know nothing of each other.

#include "common/control.h"
#include "step/worker.h"

int main(int count, char** arguments) {
  if (count != 5 && count != 6) {
    bench::fail("usage: bench_step_process SOCKET MODEL OPTIMIZER THREADS [RANK]");
  }
  const int rank = count == 6 ? std::stoi(arguments[5]) : 0;
  const auto wrap = [](torch::nn::Module&) { return [] {}; };
  bench::train(arguments[1], arguments[2], rank, bench::torch_loop(arguments[3], rank, wrap),
               std::stoi(arguments[4]));
}
