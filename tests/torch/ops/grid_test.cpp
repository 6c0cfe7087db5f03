// Model parallel inside of data parallel: a grid of workers, two lines of code.

#include <algorithm>

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

/// The worst difference to plain libtorch with the whole batch, over the workers, of a trunk and a
/// head that is split over `model`, where each worker has samples of its own. examples/09_grid.cpp.
double worst_difference(const Job& job, int width, bool trunk_over_all) {
  const Group world(job);
  const Group model = world.split(job.rank() / width, "model");
  const Group data = world.split(job.rank() % width, "data");
  const auto trunk_of_all = [] {
    torch::manual_seed(1);
    torch::nn::Linear trunk(5, 4);
    trunk->to(torch::kFloat64);
    return trunk;
  };
  auto trunk = trunk_of_all();
  auto whole_trunk = trunk_of_all();
  ParallelLinear head(model, {.features = 4, .classes = 7, .seed = 1, .dtype = torch::kFloat64});
  torch::nn::Linear whole_head(4, 7);
  whole_head->to(torch::kFloat64);
  const auto weights = head->split_tensors();
  const auto take_whole = [&](std::size_t which, torch::Tensor& to) {
    auto whole = gather_whole(model, weights[which], 0);
    if (!whole.defined()) whole = torch::empty_like(to);
    broadcast(model, whole, 0);
    const torch::NoGradGuard no_grad;
    to.copy_(whole);
  };
  take_whole(0, whole_head->weight);
  take_whole(1, whole_head->bias);
  const DataParallel trunks(trunk_over_all ? world : data, *trunk, {.divide = Divide::not_at_all});
  const DataParallel heads(data, *head, {.divide = Divide::not_at_all});
  const auto optimizer_of = [](const std::vector<torch::nn::Module*>& modules) {
    std::vector<torch::Tensor> parameters;
    for (auto* module : modules) {
      for (auto& parameter : module->parameters()) parameters.push_back(parameter);
    }
    return momentum_and_decay(parameters);
  };
  auto optimizer = optimizer_of({trunk.get(), head.get()});
  auto whole_optimizer = optimizer_of({whole_trunk.get(), whole_head.get()});
  constexpr std::int64_t kUneven = 11;
  const auto [begin, end] = share_of(kUneven, job);
  const auto loss_of = [&](const torch::Tensor& logits, std::uint64_t step, std::int64_t from,
                           std::int64_t to) {
    const auto labels =
        torch::randint(7, {kUneven}, at::make_generator<at::CPUGeneratorImpl>(step), torch::kInt64);
    return torch::cross_entropy_loss(logits, labels.slice(0, from, to), {}, at::Reduction::Sum) /
           kUneven;
  };
  double worst = 0;
  const auto compare = [&](const torch::Tensor& mine, const torch::Tensor& whole) {
    worst = std::max(worst, (mine - whole).abs().max().item<double>());
  };
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const auto x = draw(step, {kUneven, 5});
    optimizer.zero_grad();
    loss_of(head->logits(trunk->forward(x.slice(0, begin, end)).tanh()), step, begin, end)
        .backward();
    optimizer.step();
    whole_optimizer.zero_grad();
    loss_of(whole_head->forward(whole_trunk->forward(x).tanh()), step, 0, kUneven).backward();
    whole_optimizer.step();
    const auto [first, last] = share_of(7, model);
    compare(trunk->weight, whole_trunk->weight);
    compare(trunk->bias, whole_trunk->bias);
    compare(head->weight, whole_head->weight.slice(0, first, last));
    compare(head->bias, whole_head->bias.slice(0, first, last));
  }
  world.all_reduce({&worst, 1, DType::float64}, Reduction::max);
  return worst;
}

TEST(Grid, WithSamplesOfTheirOwnNeighboursHaveTheModelOfOneProcess) {
  for (const auto& [data_size, width] : {std::pair{2, 2}, std::pair{1, 3}, std::pair{3, 1}}) {
    on_workers(data_size * width, [width = width](const Job& job) {
      EXPECT_LE(worst_difference(job, width, true), 1e-12);
    });
  }
}

TEST(Grid, ATrunkThatIsReducedOverDataAloneIsAnotherOneForNeighbours) {
  on_workers(4, [](const Job& job) { EXPECT_GE(worst_difference(job, 2, false), 1e-3); });
}

}  // namespace
}  // namespace tutti::test::grid_cases
