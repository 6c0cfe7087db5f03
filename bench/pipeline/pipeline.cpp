// A step of eight equal blocks over eight micro-batches, on one worker without a pipeline, or in a
// pipeline of as many stages as there are workers; and what its schedules allow.
//
//   bench_pipeline SOCKET (none | gpipe | 1f1b | zb-h1 | alone)
//
// "steps N" is answered with the nanoseconds of each step; "peak" with the most bytes of libtorch's
// allocator during a step, by this worker. "alone": each worker computes its own stage of the
// micro-batches, all at the same time, and waits for nobody; "bounds N" is answered with
// nanoseconds: the time of each schedule, gpipe, 1f1b, zb-h1, by simulate(), from the medians of N
// micro-batches. "update N" is answered by "none": nanoseconds of N updates.

#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/control.h"
#include "common/median.h"
#include "torch/pipeline/stage_graph.h"
#include "torch/recompute/memory_meter.h"
#include "tutti/pipeline_timeline.h"
#include "tutti/tutti.h"

namespace {

using torch::Tensor;
using tutti::TensorList;

constexpr int kBlocks = 8;
constexpr int kMicroBatches = 8;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 64;
constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kHeads = 8;
constexpr double kLearningRate = 1e-4;
const std::array<const char*, 3> kSchedules = {"gpipe", "1f1b", "zb-h1"};

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : first(
            register_module("first", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        second(
            register_module("second", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        in(register_module("in", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  Tensor forward(const Tensor& x) {
    const auto parts = in->forward(first->forward(x)).chunk(3, 2);
    const auto of_heads = [](const Tensor& part) {
      return part.unflatten(2, {kHeads, -1}).transpose(1, 2);
    };
    const auto seen = at::scaled_dot_product_attention(of_heads(parts[0]), of_heads(parts[1]),
                                                       of_heads(parts[2]), {}, 0, true);
    const auto y = x + out->forward(seen.transpose(1, 2).flatten(2));
    return y + down->forward(torch::gelu(up->forward(second->forward(y))));
  }
  torch::nn::LayerNorm first, second;
  torch::nn::Linear in, out, up, down;
};
TORCH_MODULE(Block);

struct Model {
  Model() {
    torch::manual_seed(1);
    for (int i = 0; i < kBlocks; ++i) {
      blocks->push_back(Block());
      layers.push_back(tutti::pipeline_layer(blocks->ptr<BlockImpl>(static_cast<std::size_t>(i))));
    }
    for (int m = 0; m < kMicroBatches; ++m) {
      inputs.push_back(torch::randn({kRows, kLength, kWidth}));
    }
  }
  const Tensor& input(std::int64_t shard) const { return inputs[static_cast<std::size_t>(shard)]; }
  TensorList run(int begin, int end, TensorList values) const {
    for (int k = begin; k < end; ++k) values = layers[static_cast<std::size_t>(k)](values);
    return values;
  }

  torch::nn::Sequential blocks;
  std::vector<tutti::PipelineLayer> layers;
  std::vector<Tensor> inputs;
};

Tensor loss_of(const Tensor& y) { return y.square().mean(); }

// ---- a Trainer ----

class Training {
 public:
  Training(const tutti::Job& job, const std::string& way) : in_stages_(way != "none") {
    tutti::TrainerOptions options{.shards = kMicroBatches, .seed = 1, .audit_every = 0};
    if (in_stages_) {
      options.pipeline = tutti::Pipeline{.stages = job.size(), .schedule = way};
      options.pipeline->layers = model_.layers;
    }
    trainer_ = std::make_unique<tutti::Trainer>(job, *model_.blocks,
                                                tutti::Adam{.lr = kLearningRate}, options);
  }
  void accumulate() {
    if (in_stages_) {
      trainer_->accumulate(
          [this](tutti::Shard& shard) -> TensorList { return {model_.input(shard.index())}; },
          [](tutti::Shard& shard, const TensorList& y) { return shard.loss(loss_of(y[0])); });
    } else {
      trainer_->accumulate([this](tutti::Shard& shard) {
        return shard.loss(loss_of(model_.run(0, kBlocks, {model_.input(shard.index())})[0]));
      });
    }
  }
  void update() {
    if (!trainer_->apply().applied) bench::fail("a step was dropped");
  }
  void step() {
    accumulate();
    update();
  }

 private:
  Model model_;
  bool in_stages_;
  std::unique_ptr<tutti::Trainer> trainer_;
};

std::vector<std::int64_t> update_times(Training& training, int count) {
  std::vector<std::int64_t> times;
  for (int i = 0; i < count; ++i) {
    training.accumulate();
    times.push_back(bench::measure(1, [&] { training.update(); })[0]);
  }
  return times;
}

std::int64_t peak_of(Training& training) {
  tutti::MemoryMeter meter;
  training.step();
  return meter.peak();
}

// ---- stages alone ----

/// What a worker's own stage takes of one micro-batch, in milliseconds.
class StageAlone {
 public:
  StageAlone(int stage, int stages) : stage_(stage), stages_(stages) {}
  /// Forward, both halves of backward and, of another run, the whole backward.
  std::array<double, 4> measure() {
    const auto [forward, input, weight] = run(true);
    const auto [again, whole, nothing] = run(false);
    return {(forward + again) / 2, input, weight, whole};
  }

 private:
  std::array<double, 3> run(bool in_halves) {
    const auto shard = next_++ % kMicroBatches;
    const bool is_first = stage_ == 0;
    tutti::StageGraph graph;
    std::array<std::chrono::steady_clock::time_point, 4> at;
    at[0] = std::chrono::steady_clock::now();
    TensorList values = {model_.input(shard)};
    if (!is_first) values = graph.enter(values, {1});
    auto results = model_.run(stage_ * kBlocks / stages_, (stage_ + 1) * kBlocks / stages_, values);
    const bool is_last = stage_ + 1 == stages_;
    if (is_last) results[0] = loss_of(results[0]);
    graph.leave(results);
    const TensorList gradients = {is_last ? torch::ones({}) : model_.input(shard)};
    results.clear();
    at[1] = std::chrono::steady_clock::now();
    if (in_halves) {
      graph.backward_inputs(gradients, {}, {});
      at[2] = std::chrono::steady_clock::now();
      graph.backward_weights();
    } else {
      graph.backward(gradients, {});
      at[2] = std::chrono::steady_clock::now();
    }
    at[3] = std::chrono::steady_clock::now();
    std::array<double, 3> parts{};
    for (std::size_t k = 0; k < parts.size(); ++k) {
      parts[k] = std::chrono::duration<double, std::milli>(at[k + 1] - at[k]).count();
    }
    return parts;
  }

  Model model_;
  int stage_;
  int stages_;
  std::int64_t next_ = 0;
};

std::vector<std::int64_t> bounds(const tutti::Group& group, StageAlone& stage, int count) {
  group.barrier();
  std::array<std::vector<double>, 4> samples;
  for (int i = 0; i < count; ++i) {
    const auto parts = stage.measure();
    for (std::size_t k = 0; k < parts.size(); ++k) samples[k].push_back(parts[k]);
  }
  std::vector<double> own;
  for (const auto& values : samples) own.push_back(bench::median(values));
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.size()));
  group.all_gather({own.data(), std::ssize(own), tutti::DType::float64},
                   {all.data(), std::ssize(all), tutti::DType::float64});
  tutti::PipelineCosts whole;
  tutti::PipelineCosts halves;
  for (std::size_t s = 0; s < all.size(); s += own.size()) {
    whole.stages.push_back({all[s], all[s + 3], 0});
    halves.stages.push_back({all[s], all[s + 1], all[s + 2]});
  }
  std::vector<std::int64_t> times;
  for (const std::string name : kSchedules) {
    const auto schedule = tutti::PipelineSchedule::named(name, 0, group.size(), kMicroBatches);
    const auto& costs = name == "zb-h1" ? halves : whole;
    times.push_back(
        static_cast<std::int64_t>(1e6 * tutti::simulate(schedule, costs).makespan_ms()));
  }
  for (const double part : all) times.push_back(static_cast<std::int64_t>(1e6 * part));
  return times;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) bench::fail("usage: bench_pipeline SOCKET (none | gpipe | 1f1b | zb-h1 | alone)");
  const std::string way = arguments[2];
  torch::set_num_threads(1);
  const auto job = tutti::Job::join();
  const tutti::Group group(job, "stages alone");
  std::unique_ptr<Training> training;
  std::unique_ptr<StageAlone> stage;
  if (way == "alone") {
    stage = std::make_unique<StageAlone>(job.rank(), job.size());
  } else {
    training = std::make_unique<Training>(job, way);
  }
  bench::Control control(arguments[1], job.rank());
  std::istringstream command;
  while (control.next(command)) {
    std::string what;
    int number = 0;
    command >> what >> number;
    if (what == "steps" && training) {
      control.send(bench::measure(number, [&] { training->step(); }));
    } else if (what == "update" && training) {
      control.send(update_times(*training, number));
    } else if (what == "peak" && training) {
      control.send(std::vector<std::int64_t>{peak_of(*training)});
    } else if (what == "bounds" && stage) {
      control.send(bounds(group, *stage, number));
    } else {
      bench::fail("unknown command: " + what);
    }
  }
} catch (const std::exception& error) {
  bench::fail(error.what());
}
