#pragma once

// The exactness matrix: models × optimizers × ways of a step, as runs on any number of workers,
// straight or with a stop. What a run gives is what state_sha256() says after every step.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::exact {

/// What a shard's data, and what it takes part in, depend on.
struct Piece {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t index = 0;
};

/// A model and its loss for one shard; none where the shard has nothing.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  std::function<std::optional<torch::Tensor>(const Piece&)> loss;
};

inline torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}
inline torch::Tensor draw_codes(std::uint64_t seed, std::int64_t codes, torch::IntArrayRef sizes) {
  return torch::randint(codes, sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}
inline double weight_of(std::int64_t shard) { return static_cast<double>(1 + (shard * 5 + 3) % 4); }
inline ShardAnswer answer_of(const Task& task, Shard& shard) {
  const auto loss = task.loss({shard.seed(), shard.step(), shard.index()});
  return loss ? shard.loss(*loss, weight_of(shard.index())) : shard.nothing();
}

inline Task mlp_with_dropout() {
  auto net = torch::nn::Sequential(torch::nn::Linear(6, 700), torch::nn::ReLU(),
                                   torch::nn::Dropout(0.4), torch::nn::Linear(700, 9));
  return {net.ptr(), [net](const Piece& piece) mutable {
            return net->forward(draw(piece.seed, {4, 6})).square().mean();
          }};
}

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 20))),
        lstm(register_module("lstm", torch::nn::LSTM(20, 40))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})))),
        output(register_module("output", torch::nn::Linear(40, 11))) {}
  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::LayerNorm norm;
  torch::nn::Linear output;
};
TORCH_MODULE(Recurrent);

inline Task recurrent() {
  Recurrent net;
  return {net.ptr(), [net](const Piece& piece) mutable {
            const auto codes = draw_codes(piece.seed, 11, {7, 3});
            const auto hidden = std::get<0>(net->lstm->forward(net->embedding->forward(codes)));
            const auto scores = net->output->forward(net->norm->forward(hidden)).flatten(0, 1);
            return torch::nn::functional::cross_entropy(scores, codes.flatten());
          }};
}

inline Task convolution_with_batch_norm() {
  auto net = torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)),
                                   torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                                   torch::nn::Flatten(), torch::nn::Linear(8 * 16, 5));
  return {net.ptr(), [net](const Piece& piece) mutable {
            return net->forward(draw(piece.seed, {4, 3, 6, 6})).square().mean();
          }};
}

inline Task embedding() {
  auto net = torch::nn::Sequential(torch::nn::Embedding(900, 10), torch::nn::Flatten(),
                                   torch::nn::Linear(40, 3));
  return {net.ptr(), [net](const Piece& piece) mutable {
            const auto codes = draw_codes(piece.seed, 900, {3, 4});
            return net->forward(codes).square().mean();
          }};
}

/// Row-sparse tables, two of them looked up by the same codes, one of them twice; some shards look
/// up nothing.
struct TablesImpl : torch::nn::Module {
  TablesImpl()
      : words(register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(900, 10).sparse(true)))),
        bias(register_module(
            "bias", torch::nn::EmbeddingBag(
                        torch::nn::EmbeddingBagOptions(900, 1).sparse(true).mode(torch::kSum)))),
        output(register_module("output", torch::nn::Linear(40, 3))) {}
  torch::nn::Embedding words;
  torch::nn::EmbeddingBag bias;
  torch::nn::Linear output;
};
TORCH_MODULE(Tables);

inline Task tables() {
  Tables net;
  return {net.ptr(), [net](const Piece& piece) mutable {
            const auto codes = draw_codes(piece.seed, 900, {3, 4});
            const auto x = net->words->forward(codes) + net->words->forward(codes.flip(0));
            const auto scores = net->output->forward(x.flatten(1));
            if ((piece.index + piece.step) % 3 == 0) return net->output->weight.square().sum();
            return (scores + net->bias->forward(codes)).square().mean();
          }};
}

inline Task tied_weights() {
  auto shared = torch::nn::Linear(torch::nn::LinearOptions(70, 70).bias(false));
  auto net = torch::nn::Sequential(shared, torch::nn::Tanh(), shared);
  return {net.ptr(), [net](const Piece& piece) mutable {
            return net->forward(draw(piece.seed, {2, 70})).square().mean();
          }};
}

/// Branches that only some shards use, one that none uses, and shards without data.
inline Task branches() {
  auto net = torch::nn::ModuleList(torch::nn::Linear(6, 90), torch::nn::Linear(6, 90),
                                   torch::nn::Linear(6, 90));
  return {net.ptr(), [net](const Piece& piece) mutable -> std::optional<torch::Tensor> {
            if ((piece.index + piece.step) % 4 == 3) return {};
            const auto which = static_cast<std::size_t>(piece.seed % 2);
            return net[which]
                ->as<torch::nn::Linear>()
                ->forward(draw(piece.seed, {3, 6}))
                .square()
                .mean();
          }};
}

inline Task half_precision() {
  auto net = torch::nn::Sequential(torch::nn::Linear(6, 130), torch::nn::Linear(130, 3));
  net->to(torch::kBFloat16);
  return {net.ptr(), [net](const Piece& piece) mutable {
            const auto x = draw(piece.seed, {4, 6}).to(torch::kBFloat16);
            return net->forward(x).square().mean();
          }};
}

// ---- the axes ----

/// The last one is row-sparse.
inline constexpr const char* kModels[] = {"mlp",  "lstm",     "convolution", "embedding",
                                          "tied", "branches", "half",        "tables"};
inline Task make(const std::string& model) {
  if (model == "mlp") return mlp_with_dropout();
  if (model == "lstm") return recurrent();
  if (model == "convolution") return convolution_with_batch_norm();
  if (model == "embedding") return embedding();
  if (model == "tables") return tables();
  if (model == "tied") return tied_weights();
  if (model == "branches") return branches();
  return half_precision();
}

inline constexpr const char* kOptimizers[] = {
    "sgd", "adam", "adamw", "rmsprop", "adagrad", "plain_sgd", "amsgrad", "rms_prop", "lion"};
inline Optimizer optimizer_of(const std::string& name) {
  if (name == "plain_sgd") return Sgd{.lr = 0.1};
  if (name == "sgd") return Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true};
  if (name == "amsgrad") return AdamW{.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true};
  if (name == "rms_prop") return RmsProp{.momentum = 0.9, .centered = true};
  if (name == "lion") return Lion{.lr = 1e-3, .weight_decay = 0.1};
  if (name == "adam") return Adam{.lr = 1e-2, .weight_decay = 0.1};
  if (name == "adamw") return AdamW{.lr = 1e-2, .weight_decay = 0.1};
  if (name == "rmsprop") {
    return torch_optimizer<torch::optim::RMSprop>(
        torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true));
  }
  return Adagrad{.lr_decay = 0.1, .initial_sum = 0.01};
}
TrainerOptions options_of(const std::string& way);
/// Rows, and what logical workers have for themselves, are updated by native rules alone, and rows
/// are everybody's. Momentum is corrected for SGD that has none.
inline bool go_together(const std::string& model, const std::string& optimizer,
                        const std::string& way) {
  const bool has_rows = model == "tables";
  const bool is_per_replica = way.starts_with("local") || way == "block momentum" ||
                              way == "partial" || way.starts_with("diloco");
  if ((way == "momentum correction") != (optimizer == "plain_sgd")) return false;
  if (model == "tied" && (way == "local biases" || way == "diloco" || way == "diloco in 8 bits")) {
    return false;  // it has no bias, and one parameter, not two to send in turn
  }
  // What a Trainer refuses on a device, and rules that are tried out on tensors of the CPU.
  const bool is_offered =
      !test_device_profile() || (!has_rows && !is_per_replica && optimizer != "rmsprop" &&
                                 options_of(way).compression.codec == nullptr);
  return is_offered && !(has_rows && is_per_replica) &&
         !((has_rows || is_per_replica) && optimizer == "rmsprop");
}

/// Every run has uneven weights, and more shards than workers or fewer.
inline constexpr const char* kWays[] = {"plain",
                                        "norm clip",
                                        "value clips",
                                        "loss scale",
                                        "halves",
                                        "half codec",
                                        "bfloat16 codec",
                                        "int8 codec",
                                        "threshold codec",
                                        "topk codec",
                                        "topk per tensor",
                                        "local",
                                        "local biases",
                                        "block momentum",
                                        "partial",
                                        "diloco",
                                        "diloco in 8 bits",
                                        "diloco with overlap",
                                        "momentum correction"};
inline TrainerOptions options_of(const std::string& way) {
  TrainerOptions options{.seed = 5};
  if (way == "norm clip") options.clip.norm = 0.01;
  if (way == "value clips") options.clip = {.parameter_norm = 0.1, .value = 0.001};
  if (way == "loss scale") options.loss_scale = {.start = 8, .dynamic = true, .grow_after = 2};
  if (way == "halves") options.schedule = Schedule::cosine(4, 0.1);
  if (way == "local biases") {
    options.per_replica = [](const std::string& name) { return name.find("bias") != name.npos; };
    options.clip.norm = 0.01;
  }
  if (way == "local") {
    options.averaging = local_sgd(3, 1);
    options.state_at_averaging = StateAtAveraging::average;
    options.loss_scale = {.start = 8, .dynamic = true, .grow_after = 2};
  }
  if (way == "block momentum") options.averaging = block_momentum(2, 0, {.nesterov = true});
  if (way.starts_with("diloco")) {
    options.averaging =
        diloco(3, {.fragments = 2, .warm_up = 1, .int8 = way == "diloco in 8 bits"});
    options.loss_scale = {.start = 8, .dynamic = true, .grow_after = 2};
  }
  if (way == "diloco with overlap") options.averaging = diloco(3, {.warm_up = 1, .overlap = 2});
  if (way == "partial") {
    options.averaging = partial_update();
    options.clip.norm = 0.01;
  }
  if (way == "plain" || way.ends_with("clip") || way.ends_with("clips") || way == "loss scale" ||
      way == "halves") {
    return options;
  }
  // Other pairs of a codec and what may meet it: docs/combinations.md.
  options.logical_workers = 5;
  options.compression.fusion = 1000;
  if (way == "half codec") {
    options.compression.codec = half_codec();
    options.loss_scale = {.start = 8, .dynamic = true, .grow_after = 2};
  }
  if (way == "bfloat16 codec") options.compression.codec = bfloat16_codec();
  if (way == "int8 codec") options.compression.codec = int8_codec();
  if (way == "threshold codec") {
    options.compression.codec = threshold_codec(1e-3);
    options.clip = {.parameter_norm = 0.1, .value = 0.001};
  }
  if (way == "topk codec") {
    options.compression.codec = top_k_codec(0.1);
    options.clip.norm = 0.01;
  }
  if (way == "momentum correction") {  // the last step is past the warm-up
    options.compression.codec = top_k_codec(0.1, 3);
    options.compression.momentum_correction = {.nesterov = true, .weight_decay = 0.1};
  }
  if (way == "topk per tensor") {
    options.compression = {.codec = top_k_codec(0.01), .scope = CodecScope::tensor, .clamp = 0.01};
  }
  return options;
}

struct Case {
  std::string model;
  std::string optimizer;
  std::string way;
  std::int64_t shards;
  std::int64_t audit_every = 3;
};
inline std::string text_of(const Case& one) {
  return one.model + ", " + one.optimizer + ", " + one.way + ", " + std::to_string(one.shards) +
         " shards";
}

/// A name for GoogleTest.
inline std::string name_of(const std::string& model, const std::string& optimizer,
                           std::string way) {
  std::replace(way.begin(), way.end(), ' ', '_');
  return model + "_" + optimizer + "_" + way;
}

inline constexpr std::int64_t kSteps = 4;

/// Goes on from the folder's checkpoint, where one is given, up to step `until`, and saves there;
/// 64 digits per step.
inline std::string train(int workers, const Case& one, std::int64_t until = kSteps,
                         const std::string& run = "") {
  return text_of_rank_0(workers, [&](const Job& job) {
    // On the CPU and on devices runs are apart.
    const auto folder = run.empty() || torch::empty({0}).is_cpu() ? run : run + ".there";
    torch::manual_seed(7 + static_cast<std::uint64_t>(job.rank()));  // rank 0's parameters hold
    const auto task = make(one.model);
    here(*task.module);
    auto options = options_of(one.way);
    options.shards = one.shards;
    options.audit_every = one.audit_every;
    Trainer trainer(job, *task.module, optimizer_of(one.optimizer), options);
    if (!folder.empty()) trainer.load(folder);
    const auto first = trainer.steps();
    std::string mine;
    std::int64_t computed = 0;
    std::int64_t audited = 0;
    const auto compute = [&](Shard& shard) {
      const auto [begin, end] = trainer.shards();
      if (!shard.is_audit()) {
        EXPECT_EQ(shard.index(), begin + computed % (end - begin));
      }
      ++(shard.is_audit() ? audited : computed);
      return answer_of(task, shard);
    };
    while (trainer.steps() < until) {
      StepResult result;
      if (one.way == "halves") {
        trainer.accumulate(compute);
        EXPECT_GT(trainer.gradient_norm(), 0);
        result = trainer.apply();
      } else {
        result = trainer.step(compute);
      }
      EXPECT_TRUE(result.applied) << result.dropped_because;
      EXPECT_EQ(result.step, trainer.steps());
      EXPECT_EQ(result.report.leaves, options.shards);
      mine += trainer.state_sha256();
    }
    if (!folder.empty()) trainer.save(folder);
    const auto [begin, end] = trainer.shards();
    EXPECT_EQ(computed, (end - begin) * (until - first));
    std::string leader = mine;
    trainer.group().broadcast(
        {leader.data(), static_cast<std::int64_t>(leader.size()), DType::uint8}, 0);
    EXPECT_EQ(leader, mine);
    std::int64_t all[] = {computed, audited};
    trainer.group().all_reduce({all, 2, DType::int64}, Reduction::sum);
    EXPECT_EQ(all[0], options.shards * (until - first));
    std::int64_t audits = 0;
    for (auto step = first + 1; one.audit_every > 0 && step <= until; ++step) {
      audits += step == first + 1 || step % one.audit_every == 0;
    }
    EXPECT_EQ(all[1], audits);
    return mine;
  });
}

inline void expect_same_on_any_number(const Case& one, const std::vector<int>& workers) {
  const auto alone = train(1, one);
  EXPECT_EQ(alone.size(), 64U * kSteps);
  for (const int n : workers) EXPECT_EQ(train(n, one), alone) << text_of(one) << ", " << n;
}

/// Stopped after `stop` steps on `before` workers, gone on with by `after`.
inline void expect_same_after_a_stop(const Case& one, std::int64_t stop, int before, int after) {
  const TemporaryFolder folder;
  const auto straight = train(1, one);
  const auto first = train(before, one, stop, folder.file("run"));
  const auto second = train(after, one, kSteps, folder.file("run"));
  EXPECT_EQ(first + second, straight) << text_of(one) << ", stopped after step " << stop;
}

}  // namespace tutti::test::exact
