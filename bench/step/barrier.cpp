// No synchronisation of gradients at all: one barrier per step, so that both workers' hiccups count
// here as they do elsewhere.

#include "common/control.h"
#include "step/worker.h"
#include "tutti/group.h"

int main(int count, char** arguments) {
  if (count != 4) bench::fail("usage: tutti run -n N bench_step_barrier SOCKET MODEL OPTIMIZER");
  const auto job = tutti::Job::join();
  const tutti::Group group(job);
  const auto wrap = [&](torch::nn::Module&) { return [&group] { group.barrier(); }; };
  bench::train(arguments[1], arguments[2], group.rank(),
               bench::torch_loop(arguments[3], group.rank(), wrap));
}
