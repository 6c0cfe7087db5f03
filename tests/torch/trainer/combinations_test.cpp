// docs/combinations.md: what its tables say of every pair is what a Trainer does.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <sstream>
#include <string_view>
#include <variant>

#include "torch/exact_cases.h"

namespace tutti::test::exact {
namespace {

struct Cell {
  std::string row;
  std::string column;
  std::string says;
};

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::stringstream stream(line.substr(1));
  for (std::string field; std::getline(stream, field, '|');) {
    const auto begin = field.find_first_not_of(' ');
    fields.push_back(begin == std::string::npos
                         ? ""
                         : field.substr(begin, field.find_last_not_of(' ') + 1 - begin));
  }
  return fields;
}

std::vector<Cell> cells_of_page() {
  std::ifstream page(std::string(TUTTI_SOURCE) + "/docs/combinations.md");
  std::vector<Cell> cells;
  std::vector<std::string> header;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with('|')) {
      header.clear();
      continue;
    }
    const auto fields = fields_of(line);
    if (header.empty()) {
      header = fields;
    } else if (!line.starts_with("|---")) {
      for (std::size_t k = 1; k < fields.size(); ++k) {
        if (fields[k] != "–") cells.push_back({fields[0], header[k], fields[k]});
      }
    }
  }
  return cells;
}

struct Run {
  TrainerOptions options;
  Optimizer optimizer = Adam{.lr = 0.01};
  bool has_table = false;
  bool is_double = false;
  bool is_complex = false;
  bool is_script = false;
  bool is_on_device = false;
};

constexpr std::string_view kOnDevice = "on a device";

/// False where there is no such thing.
bool apply_option(const std::string& name, Run& run) {
  auto& compression = run.options.compression;
  auto& clip = run.options.clip;
  if (name == "no codec" || name == "on the CPU") return true;
  if (name == kOnDevice) return run.is_on_device = true;
  if (name == "half") return compression.codec = half_codec(), true;
  if (name == "bfloat16") return compression.codec = bfloat16_codec(), true;
  if (name == "int8") return compression.codec = int8_codec(), true;
  if (name == "threshold") return compression.codec = threshold_codec(1e-3), true;
  if (name.starts_with("top-K")) {
    compression.codec = top_k_codec(0.05);
    if (name == "top-K of tensors") compression.scope = CodecScope::tensor;
    if (name == "top-K without feedback") compression.error_feedback = false;
    return true;
  }
  if (name == "momentum correction") {
    compression.codec = top_k_codec(0.05);
    compression.momentum_correction = {.momentum = 0.5};
    return run.optimizer = optimizer_of("plain_sgd"), true;
  }
  if (name == "SGD") return run.optimizer = optimizer_of("plain_sgd"), true;
  if (name == "clip by norm") return clip.norm = 0.01, true;
  if (name == "clip by parameter norm") return clip.parameter_norm = 0.01, true;
  if (name == "clip by value") return clip.value = 1e-3, true;
  if (name == "clamp before the codec") return compression.clamp = 1e-3, true;
  if (name == "static loss scale") return run.options.loss_scale = {.start = 1024}, true;
  if (name == "dynamic loss scale") {
    run.options.loss_scale = {.start = 1024, .dynamic = true, .grow_after = 2};
    return true;
  }
  if (name == "SGD with momentum") return run.optimizer = optimizer_of("sgd"), true;
  if (name == "Adam") return run.optimizer = optimizer_of("adam"), true;
  if (name == "AdamW") return run.optimizer = optimizer_of("adamw"), true;
  if (name == "torch's RMSprop") return run.optimizer = optimizer_of("rmsprop"), true;
  if (name == "row-sparse table") {
    compression.fusion = 1000;  // the dense parameters are a group
    return run.has_table = true;
  }
  if (name.starts_with("local SGD")) {
    run.options.averaging = local_sgd(2);
    if (name.ends_with("averaged state"))
      run.options.state_at_averaging = StateAtAveraging::average;
    if (name.ends_with("reset state")) run.options.state_at_averaging = StateAtAveraging::reset;
    return true;
  }
  if (name == "block momentum") return run.options.averaging = block_momentum(2), true;
  if (name == "DiLoCo") return run.options.averaging = diloco(2, {.warm_up = 0}), true;
  if (name == "DiLoCo in fragments") {
    run.options.averaging = diloco(2, {.fragments = 2, .warm_up = 0});
    return true;
  }
  if (name == "DiLoCo in 8 bits") {
    run.options.averaging = diloco(2, {.warm_up = 0, .int8 = true});
    return true;
  }
  if (name == "DiLoCo with overlap") {
    run.options.averaging = diloco(2, {.warm_up = 0, .overlap = 1});
    return true;
  }
  if (name == "partial update") return run.options.averaging = partial_update(), true;
  if (name == "per-replica biases") {
    run.options.per_replica = [](const std::string& name) { return name.ends_with("bias"); };
    return true;
  }
  if (name == "averages of the parameters") return run.options.ema_decay = 0.9, true;
  if (name == "owned biases") {
    compression.fusion = 1000;  // the weights are a group
    run.options.placement = [](const std::string& name) {
      return name.ends_with("bias") ? std::optional<std::int64_t>(1) : std::nullopt;
    };
    return true;
  }
  if (name == "sums") return run.options.divide = Divide::not_at_all, true;
  if (name == "divided by contributors") {
    run.options.divide = Divide::by_contributors;
    return true;
  }
  if (name == "float64 parameters") return run.is_double = true;
  if (name == "complex parameters") return run.is_complex = true;
  if (name == "TorchScript") return run.is_script = true;
  if (name == "AMSGrad") return run.optimizer = optimizer_of("amsgrad"), true;
  if (name == "RmsProp") return run.optimizer = optimizer_of("rms_prop"), true;
  if (name == "Lion") return run.optimizer = optimizer_of("lion"), true;
  if (name == "Adagrad") return run.optimizer = optimizer_of("adagrad"), true;
  return false;
}

Task mlp_of_rows() {
  auto model = mlp();
  return {model.ptr(), [model](const Piece& piece) mutable {
            const auto type = model->parameters().front().scalar_type();
            const auto where = model->parameters().front().device();
            return model->forward(draw(piece.seed, {4, 6}).to(where, type)).square().mean();
          }};
}

/// Such a one as a script.
Task script_of_rows() {
  const auto plain = mlp_of_rows();
  const auto values = plain.module->named_parameters();
  torch::jit::Module net("net");
  for (const char* layer : {"0", "2"}) {
    const auto name = std::string("layer") + layer;
    torch::jit::Module part(name);
    for (const char* kind : {"weight", "bias"}) {
      part.register_parameter(kind, values[std::string(layer) + "." + kind], false);
    }
    part.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
    net.register_module(name, part);
  }
  net.define(
      "def forward(self, x):\n  return self.layer2.forward(torch.tanh(self.layer0.forward(x)))\n");
  ScriptModule model(net);
  return {model.ptr(), [model](const Piece& piece) mutable {
            const auto like = model->parameters().front();
            const auto x = draw(piece.seed, {4, 6}).to(like.device(), like.scalar_type());
            return model->forward({x}).toTensor().square().mean();
          }};
}

struct GatedImpl : torch::nn::Module {
  explicit GatedImpl(const std::shared_ptr<Module>& inner) {
    register_module("inner", inner);
    weight = register_parameter("gate_weight", torch::view_as_complex(draw(5, {40, 2})));
    bias = register_parameter("gate_bias", torch::view_as_complex(draw(6, {3, 2})));
  }
  torch::Tensor weight, bias;
};

/// With complex parameters besides.
Task gated(const Task& inner) {
  const auto net = std::make_shared<GatedImpl>(inner.module);
  return {net, [net, inner](const Piece& piece) -> std::optional<torch::Tensor> {
            const auto loss = inner.loss(piece);
            const auto x = torch::view_as_complex(draw(piece.seed, {3, 40, 2}));
            const auto y = torch::tanh(x.to(net->weight.device()).matmul(net->weight) + net->bias);
            return *loss + torch::real(y * y.conj()).mean().to(loss->scalar_type());
          }};
}

/// Of all cells, one line each: the state after three steps, or the error.
std::string train_all(int workers, std::span<const Cell> cells) {
  return text_of_rank_0(workers, [&](const Job& job) {
    std::string all;
    if (std::ranges::find(cells, kOnDevice, &Cell::column) != cells.end()) {
      test_device::register_device(2);
      test_device::hold(test_device::Held::kSideStreams);
    }
    for (const auto& cell : cells) {
      Run run{.options = {.shards = 5, .seed = 3, .logical_workers = 5}};
      run.options.compression.fusion = 100;
      EXPECT_TRUE(apply_option(cell.row, run)) << cell.row;
      EXPECT_TRUE(apply_option(cell.column, run)) << cell.column;
      torch::manual_seed(1);
      auto task = run.has_table ? tables() : run.is_script ? script_of_rows() : mlp_of_rows();
      if (run.is_double) task.module->to(torch::kFloat64);
      if (run.is_complex) task = gated(task);
      if (run.is_on_device) task.module->to(local_device(job));
      try {
        Trainer trainer(job, *task.module, run.optimizer, run.options);
        while (trainer.steps() < 3) {
          const auto result = trainer.step([&](Shard& shard) { return answer_of(task, shard); });
          EXPECT_TRUE(result.applied) << cell.row << " × " << cell.column;
        }
        all += trainer.state_sha256() + "\n";
      } catch (const Error& error) {
        all += std::string("refused: ") + error.what() + "\n";
      }
    }
    return all;
  });
}

/// Workers have a limited time: those of a loaded machine are asked for some cells at once.
std::string train_in_parts(int workers, std::span<const Cell> cells) {
  constexpr std::size_t kCells = 100;
  std::string all;
  for (std::size_t begin = 0; begin < cells.size(); begin += kCells) {
    all += train_all(workers, cells.subspan(begin, std::min(kCells, cells.size() - begin)));
  }
  return all;
}

// promise: averaging.h#sends_int8
TEST(Combinations, EveryPairDoesWhatThePageSays) {
  const auto cells = cells_of_page();
  ASSERT_GT(cells.size(), 100u);
  std::stringstream alone(train_in_parts(1, cells));
  std::stringstream three(train_in_parts(3, cells));
  // What is on a device has the bytes of the CPU.
  std::vector<Cell> there;
  std::ranges::copy_if(cells, std::back_inserter(there),
                       [](const Cell& cell) { return cell.column == kOnDevice; });
  EXPECT_GT(there.size(), 30u);
  for (auto& cell : there) cell.column = "on the CPU";
  std::stringstream on_cpu(train_in_parts(1, there));
  std::map<std::string, std::string> seen;  // by hash and column: each option does something
  for (const auto& cell : cells) {
    std::string one;
    std::string other;
    ASSERT_TRUE(std::getline(alone, one) && std::getline(three, other));
    const bool is_refused = one.starts_with("refused: ");
    EXPECT_EQ(cell.says, is_refused     ? "refused"
                         : one == other ? "exact"
                                        : "allowed")
        << cell.row << " × " << cell.column << ": " << one << " / " << other;
    if (cell.column == kOnDevice) {
      std::string bytes;
      ASSERT_TRUE(std::getline(on_cpu, bytes));
      EXPECT_TRUE(is_refused || one == bytes) << cell.row << " on a device";
      continue;
    }
    // A power of two that nothing overflows with leaves no trace, nor does an owner, and no codec
    // is no bound.
    if (is_refused || cell.row.ends_with("loss scale") || cell.row == "owned biases" ||
        cell.column == "clamp before the codec")
      continue;
    const auto [at, is_new] = seen.emplace(cell.column + " " + one, cell.row);
    EXPECT_TRUE(is_new) << cell.row << " is no other than " << at->second << ", " << cell.column;
  }
}

}  // namespace
}  // namespace tutti::test::exact
