// What recomputation saves and costs: one training step's forward and backward, plainly and with
// segments that run again, which take turns.
//
//   bench_recompute MODEL ROUNDS
//
// MODEL is "lstm" (two layers of 256 over 1 024 time steps, 16 sequences; 32 chunks of time by the
// module itself, in one workspace, and again) or "blocks" (24 blocks of attention and MLP, width
// 256, 8 sequences of 128; again: by a budget).
// Prints, as JSON, for each way the nanoseconds of each round, and the most bytes of libtorch's
// allocator beyond parameters and their gradients.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/recompute/memory_meter.h"
#include "tutti/recompute_sequential.h"
#include "tutti/recurrent.h"

namespace {

using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : attention(register_module(
            "attention",
            torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(width, 8)))),
        first(register_module("first", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        second(
            register_module("second", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  Tensor forward(const Tensor& x) {
    const auto normal = first->forward(x);
    const auto y = x + std::get<0>(attention->forward(normal, normal, normal));
    return y + down->forward(torch::gelu(up->forward(second->forward(y))));
  }
  torch::nn::MultiheadAttention attention;
  torch::nn::LayerNorm first, second;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

/// Ways of the same step, by name; all have the parameters.
struct Model {
  std::vector<Tensor> parameters;
  std::vector<std::pair<std::string, std::function<Tensor()>>> ways;
};

Model lstm() {
  constexpr std::int64_t kSteps = 1024;
  constexpr std::int64_t kChunks = 32;
  constexpr std::int64_t kWidth = 256;
  constexpr std::int64_t kBatch = 16;
  torch::nn::LSTM net(torch::nn::LSTMOptions(kWidth, kWidth).num_layers(2));
  const auto x = torch::randn({kSteps, kBatch, kWidth});
  const auto in_chunks = [net, x](std::int64_t chunks) {
    return [net, x, chunks]() mutable {
      std::vector<Tensor> outputs;
      std::tuple state(torch::zeros({2, kBatch, kWidth}), torch::zeros({2, kBatch, kWidth}));
      for (const auto& part : x.chunk(chunks)) {
        Tensor y;
        std::tie(y, state) = net->forward(part, state);
        outputs.push_back(y);
      }
      return torch::cat(outputs).square().mean();
    };
  };
  const auto again = [net, x](bool recompute) {
    return [net, x, recompute] {
      const tutti::ChunkOptions options{.steps = kSteps / kChunks, .recompute = recompute};
      return std::get<0>(tutti::run_in_chunks(net, x, {}, options)).square().mean();
    };
  };
  return {net->parameters(),
          {{"plain", in_chunks(1)},
           {"plain, 32 chunks", in_chunks(kChunks)},
           {"one workspace, 32 chunks", again(false)},
           {"again, 32 chunks", again(true)}}};
}

Model blocks() {
  constexpr int kBlocks = 24;
  const auto x = torch::randn({128, 8, 256});
  std::vector<Block> all;
  for (int i = 0; i < kBlocks; ++i) all.emplace_back(256);
  const auto made = [&] {
    torch::nn::Sequential layers;
    for (const auto& block : all) layers->push_back(block);
    return layers;
  };
  auto plain = made();
  Model model{plain->parameters(),
              {{"plain", [plain, x]() mutable { return plain->forward(x).square().mean(); }}}};
  const auto add = [&](const std::string& name, tutti::RecomputeSequential net) {
    model.ways.emplace_back(name, [net, x]() mutable { return net->forward(x).square().mean(); });
  };
  add("again, 5 segments", tutti::RecomputeSequential(made()));
  for (const double share : {0.0, 0.25, 0.5}) {
    tutti::RecomputeSequential net(made());
    const auto plan = net->fit(x, tutti::MemoryBudget::of_share(share));
    std::cerr << plan.text();
    add("budget " + std::to_string(static_cast<int>(100 * share)) + " %", net);
  }
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "bench_recompute (lstm | blocks) ROUNDS\n";
    return 2;
  }
  at::set_num_threads(1);
  torch::manual_seed(1);
  auto model = std::string(argv[1]) == "lstm" ? lstm() : blocks();
  for (auto& parameter : model.parameters) parameter.mutable_grad() = torch::zeros_like(parameter);
  std::map<std::string, std::vector<std::int64_t>> times;
  std::map<std::string, std::int64_t> peaks;
  for (int round = -1; round < std::atoi(argv[2]); ++round) {
    for (const auto& [name, way] : model.ways) {
      const auto begun = std::chrono::steady_clock::now();
      if (round < 0) {
        tutti::MemoryMeter meter;
        way().backward();
        peaks[name] = meter.peak();
      } else {
        way().backward();
        times[name].push_back((std::chrono::steady_clock::now() - begun).count());
      }
    }
  }
  std::string text = "{";
  for (const auto& [name, way] : model.ways) {
    text += (text.size() > 1 ? ", \"" : "\"") + name +
            "\": {\"peak\": " + std::to_string(peaks[name]) + ", \"ns\": [";
    for (std::size_t i = 0; i < times[name].size(); ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(times[name][i]);
    }
    text += "]}";
  }
  std::cout << text << "}\n";
  return 0;
}
