// What C++ users write by hand today: after backward all gradients are copied into one vector,
// which MPI_Allreduce adds up; the mean is copied back.

#include "common/control.h"
#include "step/mpi_sum.h"
#include "step/worker.h"

int main(int count, char** arguments) {
  if (count != 4) bench::fail("usage: mpirun bench_step_mpi SOCKET MODEL OPTIMIZER");
  const bench::Mpi mpi;
  const auto wrap = [&mpi](torch::nn::Module& model) {
    return [&mpi, parameters = model.parameters(), flat = torch::Tensor()]() mutable {
      torch::NoGradGuard no_grad;
      std::vector<torch::Tensor> gradients;
      for (const auto& parameter : parameters) gradients.push_back(parameter.grad().flatten());
      if (flat.defined()) {
        torch::cat_out(flat, gradients);
      } else {
        flat = torch::cat(gradients);
      }
      mpi.sum(flat.data_ptr<float>(), flat.numel());
      flat.div_(mpi.size());
      std::int64_t begin = 0;
      for (auto& gradient : gradients) {
        gradient.copy_(flat.narrow(0, begin, gradient.numel()));
        begin += gradient.numel();
      }
    };
  };
  bench::train(arguments[1], arguments[2], mpi.rank(),
               bench::torch_loop(arguments[3], mpi.rank(), wrap));
}
