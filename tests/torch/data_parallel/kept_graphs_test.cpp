// A graph that several backwards run through, each of them a step.

#include "torch/training.h"

namespace tutti::test::kept_graphs_cases {
namespace {

using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return trunk(x) * scale + offset; }
  torch::nn::Linear trunk{register_module("trunk", torch::nn::Linear(6, 4))};
  torch::Tensor scale{register_buffer("scale", torch::randn({4}))};  // a constant
  torch::Tensor offset{register_buffer("offset", torch::zeros({4}))};
  torch::Tensor count{register_buffer("count", torch::zeros({1}, torch::kInt64))};
};
TORCH_MODULE(Net);

// findings-3: B8
TEST(KeptGraphs, AGraphIsRunBackwardTwiceOnAllWorkersWhereABufferStays) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(1);
      Net net;
      Net whole;
      copy_parameters(*net, *whole);
      whole->scale.copy_(net->scale);
      DataParallel parallel(job, *net);
      for (std::uint64_t step = 1; step <= 2; ++step) {
        const Batch batch(6, step);
        const auto [begin, end] = share_of(6, job);
        const auto h = net->forward(batch.x.slice(0, begin, end));
        const auto y = whole->forward(batch.x);
        const torch::Tensor tasks[] = {h.square().mean(), h.sin().mean()};
        const torch::Tensor of_all[] = {y.square().mean(), y.sin().mean()};
        for (int task = 0; task < 2; ++task) {
          net->zero_grad();
          whole->zero_grad();
          net->count.add_(1);  // one that does change, and is in no graph
          parallel.next_weight(static_cast<double>(end - begin));
          tasks[task].backward({}, /*retain_graph=*/true);
          of_all[task].backward({}, /*retain_graph=*/true);
          EXPECT_TRUE(
              torch::allclose(net->trunk->weight.grad(), whole->trunk->weight.grad(), 1e-4, 1e-6));
        }
      }
    });
  }
}

// findings-3: B8
TEST(KeptGraphs, ABufferThatTakesOtherBytesIsTorchsErrorWhereItDoes) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    Net net;
    DataParallel parallel(job, *net, {.desync_check_every = 0});
    if (job.rank() == 0) net->scale.add_(1);
    const auto loss = net->forward(Batch(3, 1).x).square().mean();
    const auto version = net->scale._version();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(net->scale._version() == version, job.rank() == 0);
    net->zero_grad();
    const auto again = [&] { loss.backward({}, /*retain_graph=*/true); };
    if (job.rank() == 0) {
      EXPECT_THAT(text_of<PeerFailed>(again), HasSubstr("modified by an inplace operation"));
    } else {
      try {
        again();
        ADD_FAILURE() << "its graph is of other bytes";
      } catch (const c10::Error& error) {
        parallel.fail(error.what());
      }
    }
  });
}

// findings-3: B8
TEST(KeptGraphs, ASyncOfBuffersThatAreEqualLeavesThemAsTheyAre) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      Net net;
      DataParallel parallel(job, *net, {.buffers = Buffers::on_request});
      const auto loss = net->forward(Batch(3, 1).x).square().mean();
      for (int round = 0; round < 2; ++round) {
        net->zero_grad();
        if (job.rank() > 0) net->count.add_(1);
        loss.backward({}, /*retain_graph=*/true);
        parallel.sync_buffers();
        EXPECT_EQ(net->count.item<std::int64_t>(), 0);
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::kept_graphs_cases
