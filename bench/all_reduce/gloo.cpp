// The all-reduce of libtorch's Gloo on a plain tensor.

#include "common/gloo.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "all_reduce/serve.h"

int main(int count, char** arguments) {
  if (count != 5) bench::fail("usage: gloo SOCKET RANK SIZE STORE");
  const int rank = std::stoi(arguments[2]);
  const int size = std::stoi(arguments[3]);
  torch::set_num_threads(1);
  const auto gloo = bench::make_gloo(arguments[4], rank, size);
  torch::Tensor all = torch::zeros({1});
  bench::serve(arguments[1], rank, size, [&](const std::string&, std::int64_t elements) {
    if (all.numel() < elements) all = torch::zeros({elements});
    auto part = all.narrow(0, 0, elements);
    return bench::Operation{part.data_ptr<float>(), [&gloo, part] {
                              std::vector<torch::Tensor> tensors{part};
                              gloo->allreduce(tensors)->wait();
                            }};
  });
}
