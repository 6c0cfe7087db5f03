// 01_first_steps.cpp as it is written by hand over MPI: after each backward the gradients are added
// up and divided. docs/data_parallel.md has the difference.
//
//   mpirun -n 2 build/bin/plain_first_steps_mpi

#include <mpi.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  for (auto& parameter : model->parameters()) {
    MPI_Bcast(parameter.data_ptr<float>(), static_cast<int>(parameter.numel()), MPI_FLOAT, 0,
              MPI_COMM_WORLD);
  }

  for (int step = 1; step <= 200; ++step) {
    // The same batch everywhere; each worker takes its own rows.
    const auto x = torch::randn({64, 8});
    const auto y = torch::sin(x.slice(1, 0, 1)) + x.slice(1, 1, 2);
    const auto begin = x.size(0) / size * rank;
    const auto end = x.size(0) / size * (rank + 1);

    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(model->forward(x.slice(0, begin, end)), y.slice(0, begin, end));
    loss.backward();
    for (auto& parameter : model->parameters()) {
      auto& gradient = parameter.mutable_grad();
      MPI_Allreduce(MPI_IN_PLACE, gradient.data_ptr<float>(), static_cast<int>(gradient.numel()),
                    MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      gradient.div_(size);
    }
    optimizer.step();

    if (step % 50 != 0) continue;
    double mean = loss.item<double>() / size;
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) std::printf("step %d loss %.4f\n", step, mean);
  }
  MPI_Finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
