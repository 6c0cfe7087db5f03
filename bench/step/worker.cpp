#include "step/worker.h"

#include <malloc.h>

#include <fstream>
#include <optional>

#include "common/control.h"

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

/// Once through everything before memory is counted: libraries load and allocate on first use.
void first_use(const std::string& model, int rank, const Way& way) {
  make_task(model).loss(rank).backward();
  torch::nn::Linear tiny(1, 1);
  const auto loss = [tiny](std::int64_t batch) mutable {
    return tiny->forward(torch::full({1, 1}, static_cast<double>(batch))).sum();
  };
  way({tiny.ptr(), loss}).step();
}

}  // namespace

void train(const std::string& socket, const std::string& model, int rank, const Way& way,
           int threads) {
  torch::set_num_threads(threads);
  Control control(socket, rank);
  first_use(model, rank, way);
  std::optional<Task> task;
  std::optional<Training> training;
  const auto trained = [&]() -> const Training& {
    if (!training) training = way(task.emplace(make_task(model, threads)));
    return *training;
  };
  std::istringstream command;
  while (control.next(command)) {
    std::string what;
    int steps = 0;
    command >> what >> steps;
    if (what == "steps") {
      control.send(measure(steps, trained().step));
    } else if (what == "gradients") {
      trained().gradients();
      control.send(std::vector<std::int64_t>{});
    } else if (what == "traffic") {
      control.send(trained().traffic());
    } else if (what == "held") {
      control.send(std::vector<std::int64_t>{held_bytes()});
    } else {
      fail("unknown command: " + what);
    }
  }
}

Way torch_loop(const std::string& optimizer, int rank, const Wrap& wrap) {
  return [=](const Task& task) {
    const auto gradients = [rank, loss = task.loss, after_backward = wrap(*task.model)] {
      loss(rank).backward();
      after_backward();
    };
    const auto update = make_update(optimizer, *task.model);
    const auto step = [=] {
      gradients();
      update();
    };
    return Training{step, gradients};
  };
}

}  // namespace bench
