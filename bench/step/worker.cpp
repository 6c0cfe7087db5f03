#include "step/worker.h"

#include <malloc.h>

#include <fstream>

#include "common/control.h"
#include "step/models.h"

namespace bench {
namespace {

/// Bytes this process holds; a page shared by n processes counts 1/n. What malloc merely keeps for
/// later is given back first.
std::int64_t held_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    std::int64_t kilobytes = 0;
    file >> kilobytes;
    return kilobytes * 1024;
  }
  fail("no Pss in /proc/self/smaps_rollup");
}

void first_use(const Wrap& wrap) {
  torch::nn::Linear tiny(1, 1);
  const auto after_backward = wrap(*tiny);
  tiny->forward(torch::ones({1, 1})).sum().backward();
  after_backward();
}

}  // namespace

void train(const Arguments& arguments, int rank, const Wrap& wrap) {
  torch::set_num_threads(1);
  Control control(arguments.socket, rank);
  const Task task = make_task(arguments.model, rank);
  // Once through everything before memory is counted: libraries load and allocate on first use.
  task.loss().backward();
  task.model->zero_grad();
  first_use(wrap);
  std::vector<std::int64_t> held{held_bytes()};
  const auto after_backward = wrap(*task.model);
  held.push_back(held_bytes());
  const auto update = make_update(arguments.optimizer, *task.model);

  const auto step = [&] {
    task.loss().backward();
    after_backward();
    update();
  };
  std::istringstream command;
  while (control.next(command)) {
    std::string what;
    int steps = 0;
    command >> what >> steps;
    if (what == "steps") {
      control.send(measure(steps, step));
    } else if (what == "memory") {
      for (int i = 0; i < 3; ++i) {
        task.model->zero_grad();
        step();
      }
      held.push_back(held_bytes());
      control.send(held);
    } else {
      fail("unknown command: " + what);
    }
  }
}

}  // namespace bench
