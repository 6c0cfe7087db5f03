// What people write by hand today: after backward, an all-reduce of every gradient, all of them
// under way at once, then a division.

#include "common/gloo.h"
#include "common/control.h"
#include "step/worker.h"

int main(int count, char** arguments) {
  if (count != 7) bench::fail("usage: bench_step_gloo SOCKET MODEL OPTIMIZER RANK SIZE STORE");
  const int rank = std::stoi(arguments[4]);
  const int size = std::stoi(arguments[5]);
  const auto gloo = bench::make_gloo(arguments[6], rank, size);
  const auto wrap = [&](torch::nn::Module& model) {
    return [&gloo, size, parameters = model.parameters()] {
      std::vector<c10::intrusive_ptr<c10d::Work>> pending;
      for (const auto& parameter : parameters) {
        std::vector<torch::Tensor> gradient{parameter.grad()};
        pending.push_back(gloo->allreduce(gradient));
      }
      for (const auto& work : pending) work->wait();
      for (const auto& parameter : parameters) parameter.grad().div_(size);
    };
  };
  bench::train(arguments[1], arguments[2], rank, bench::torch_loop(arguments[3], rank, wrap));
}
