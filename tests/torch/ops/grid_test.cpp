// Model parallel inside of data parallel: a grid of workers, two lines of code.

#include "torch/training.h"
#include "tutti/ops.h"

namespace tutti::test::grid_cases {
namespace {

constexpr std::int64_t kInner = 6;  ///< hidden units of the whole model
constexpr std::int64_t kRows = 8;   ///< samples of a step

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(torch::kFloat64);
}

/// Two layers, of which a worker has columns of the first and the rows of the second that fit them.
struct SplitImpl : torch::nn::Module {
  SplitImpl(std::int64_t first, std::int64_t last)
      : in(register_parameter("in", draw(1, {5, kInner}).slice(1, first, last).clone())),
        out(register_parameter("out", draw(2, {kInner, 3}).slice(0, first, last).clone())) {}
  torch::Tensor forward(const Group& model, const torch::Tensor& x) {
    const auto hidden = ops::copy_to_group(model, x).matmul(in).tanh();
    return ops::reduce_from_group(model, hidden.matmul(out));
  }
  torch::Tensor in;
  torch::Tensor out;
};
TORCH_MODULE(Split);

TEST(Grid, OfDataAndModelWorkersHasTheGradientsOfOne) {
  for (const auto& [data_size, model_size] : {std::pair{2, 2}, std::pair{1, 3}, std::pair{2, 3}}) {
    on_workers(data_size * model_size, [&](const Job& job) {
      const Group world(job);
      const Group model = world.split(job.rank() / model_size, "model");
      const Group data = world.split(job.rank() % model_size, "data");
      const std::int64_t width = kInner / model_size;
      Split mine(model.rank() * width, (model.rank() + 1) * width);
      Split whole(0, kInner);
      DataParallel parallel(data, *mine);
      torch::optim::SGD optimizer(mine->parameters(), 0.1);
      torch::optim::SGD whole_optimizer(whole->parameters(), 0.1);
      const Group alone = world.split(job.rank(), "alone");
      for (std::uint64_t step = 0; step < 5; ++step) {
        const auto x = draw(10 + step, {kRows, 5});
        const std::int64_t rows = kRows / data_size;
        const auto part = x.slice(0, data.rank() * rows, (data.rank() + 1) * rows);
        optimizer.zero_grad();
        mine->forward(model, part).square().mean().backward();
        optimizer.step();
        whole_optimizer.zero_grad();
        whole->forward(alone, x).square().mean().backward();
        whole_optimizer.step();
        const auto first = model.rank() * width;
        EXPECT_TRUE(
            torch::allclose(mine->in, whole->in.slice(1, first, first + width), 1e-12, 1e-12));
        EXPECT_TRUE(
            torch::allclose(mine->out, whole->out.slice(0, first, first + width), 1e-12, 1e-12));
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::grid_cases
