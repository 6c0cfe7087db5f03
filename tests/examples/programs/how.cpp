// The answers of docs/how.md, which quotes them: `how ANSWER FOLDER` runs one. A regression on
// generated data in float64, so that the results of 1 and 2 workers agree in all printed digits.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>

#include "tutti/tutti.h"

namespace {

constexpr std::int64_t kRows = 24;  // of a step, of all workers together

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  model->to(torch::kFloat64);
  return model;
}

/// Rows and what the model should say of them: the same for the same seed.
struct Batch {
  torch::Tensor x, y;
};

Batch make_batch(std::int64_t rows, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto x = torch::randn({rows, 3}, generator, torch::kFloat64);
  return {x, torch::sin(x.slice(1, 0, 1)) + x.slice(1, 1, 2)};
}

/// This worker's rows of a batch that all workers have.
Batch mine(const Batch& all, const tutti::Job& job) {
  const auto [begin, end] = tutti::share_of(all.x.size(0), job);
  return {all.x.slice(0, begin, end), all.y.slice(0, begin, end)};
}

Batch batch_of(std::int64_t step, const tutti::Job& job) {
  return mine(make_batch(kRows, 100 + static_cast<std::uint64_t>(step)), job);
}

/// What the test compares: rank 0 says it of the run, and each worker of its parameters.
void end(const tutti::Job& job, const std::string& result, const torch::nn::Module& model) {
  if (job.rank() == 0) std::printf("result %s\n", result.c_str());
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(model).c_str());
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

std::string text(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.8f", value);
  return digits;
}

/// A loop with a DataParallel, as a program has it before it asks.
struct Loop {
  explicit Loop(const tutti::Job& job, const tutti::DataParallelOptions& options = {})
      : job_(job), parallel(job, *model, options) {}

  void train(std::int64_t steps) {
    for (std::int64_t k = 0; k < steps; ++k) {
      const auto batch = batch_of(++step, job_);
      optimizer.zero_grad();
      parallel.next_weight(static_cast<double>(batch.x.size(0)));
      torch::mse_loss(model->forward(batch.x), batch.y).backward();
      optimizer.step();
    }
  }
  /// Of this worker's rows of the data that are kept for it.
  double test_loss() {
    const torch::NoGradGuard no_grad;
    return torch::mse_loss(model->forward(test.x), test.y).item<double>();
  }

 private:
  tutti::Job job_;

 public:
  torch::nn::Sequential model = make_model();
  torch::optim::Adam optimizer{model->parameters(), torch::optim::AdamOptions(0.2)};
  tutti::DataParallel parallel;
  Batch test = mine(make_batch(50, 7), job_);
  std::int64_t step = 0;
};

/// A shard's part of a step, for a Trainer.
tutti::ShardAnswer answer(tutti::Shard& shard, torch::nn::Sequential& model) {
  const auto all = make_batch(kRows, 100 + static_cast<std::uint64_t>(shard.step()));
  const auto [begin, end] = tutti::share_of(kRows, shard.index(), shard.count());
  const auto x = all.x.slice(0, begin, end), y = all.y.slice(0, begin, end);
  return shard.loss(torch::mse_loss(model->forward(x), y), static_cast<double>(end - begin));
}

void stop_early(const tutti::Job& job, const std::string& folder) {
  Loop loop(job);
  auto& model = loop.model;
  auto& parallel = loop.parallel;
  const auto best_file = folder + "/best.pt";
  int epochs = 0;
  const auto train_an_epoch = [&] {
    loop.train(5);
    ++epochs;
  };
  const auto test_loss = [&] { return loop.test_loss(); };
  const auto test_rows = static_cast<double>(loop.test.x.size(0));

  double best = std::numeric_limits<double>::infinity();
  int epochs_without_gain = 0;
  while (epochs_without_gain < 3) {
    train_an_epoch();
    const double loss = parallel.mean(test_loss(), test_rows);  // alike on all workers
    ++epochs_without_gain;
    if (loss < best) {
      best = loss;
      epochs_without_gain = 0;
      if (job.rank() == 0) torch::save(model, best_file);  // one worker writes
    }
  }
  parallel.group().barrier();  // the file is there
  auto best_model = make_model();
  torch::load(best_model, best_file);

  require(epochs > 4 && epochs < 200, "it stops, and not at once");
  const torch::NoGradGuard no_grad;
  const auto again = torch::mse_loss(best_model->forward(loop.test.x), loop.test.y);
  const auto mean = parallel.mean(again.item<double>(), test_rows);
  require(std::abs(mean - best) < 1e-12, "the best model has the best loss");
  end(job, std::to_string(epochs) + " epochs, best " + text(best), *model);
}

void stop_a_trainer_early(const tutti::Job& job, const std::string& folder) {
  auto model = make_model();
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 0.2}, {.shards = 4});
  const auto all = make_batch(50, 7);
  const auto evaluation = [&](const std::vector<std::int64_t>& samples, tutti::ShardMetrics& sums) {
    const auto rows = torch::tensor(samples);
    const auto loss = torch::mse_loss(model->forward(all.x.index({rows})), all.y.index({rows}));
    sums.weighted_mean("loss", loss.item<double>(), static_cast<double>(samples.size()));
  };
  std::int64_t last_step = 0;
  const auto compute = [&](tutti::Shard& shard) {
    last_step = shard.step();
    return answer(shard, model);
  };

  double best = std::numeric_limits<double>::infinity();
  std::int64_t tests_without_gain = 0;
  trainer.keep("best", best);  // a run that resumes knows them
  trainer.keep("tests_without_gain", tests_without_gain);
  while (tests_without_gain < 3) {
    for (int k = 0; k < 5; ++k) trainer.step(compute);
    const double loss = trainer.evaluate(50, 10, evaluation)["loss"];  // alike on all workers
    ++tests_without_gain;
    if (loss < best) {
      best = loss;
      tests_without_gain = 0;
      trainer.save(folder + "/best", {.keep = 1});
    }
  }
  trainer.load(folder + "/best", {.of_this_run = true});  // not that of an older run

  require(trainer.steps() < last_step && last_step < 1000, "it stops, and goes back");
  const double again = trainer.evaluate(50, 10, evaluation)["loss"];
  require(again == best, "the best model has the best loss");
  end(job, std::to_string(last_step) + " steps, best " + text(best), *model);
}

void freeze(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  const auto before = model->parameters()[0].clone();

  for (auto& parameter : model[0]->parameters()) parameter.requires_grad_(false);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  tutti::DataParallel parallel(job, *model);

  const auto train = [&](int step) {
    const auto batch = batch_of(step, job);
    optimizer.zero_grad();
    parallel.next_weight(static_cast<double>(batch.x.size(0)));
    torch::mse_loss(model->forward(batch.x), batch.y).backward();
    optimizer.step();
  };
  for (int step = 1; step <= 5; ++step) train(step);
  require(parallel.touched() == std::vector<std::string>{"2.weight", "2.bias"}, "the others");
  require(torch::equal(model->parameters()[0], before), "frozen");

  for (auto& parameter : model[0]->parameters()) parameter.requires_grad_(true);
  for (int step = 6; step <= 10; ++step) train(step);
  require(parallel.touched().size() == 4 && !torch::equal(model->parameters()[0], before),
          "thawed");
  end(job, text(model->parameters()[2].sum().item<double>()), *model);
}

void freeze_in_a_trainer(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  const auto before = model->parameters()[0].clone();
  for (auto& parameter : model[0]->parameters()) parameter.requires_grad_(false);
  const tutti::Optimizer optimizer(tutti::AdamW{.lr = 1e-2, .weight_decay = 0.1});
  tutti::Trainer trainer(job, *model, optimizer, {.shards = 4});
  const auto train = [&] {
    for (int k = 0; k < 5; ++k) trainer.step([&](auto& shard) { return answer(shard, model); });
  };
  train();
  require(torch::equal(model->parameters()[0], before), "frozen");
  for (auto& parameter : model[0]->parameters()) parameter.requires_grad_(true);
  train();
  require(!torch::equal(model->parameters()[0], before), "thawed");
  end(job, text(model->parameters()[2].sum().item<double>()), *model);
}

void rates(const tutti::Job& job, const std::string&) {
  auto model = make_model();

  using Rate = torch::optim::AdamOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(model[0]->parameters(), std::make_unique<Rate>(1e-4));
  groups.emplace_back(model[2]->parameters(), std::make_unique<Rate>(1e-2));
  torch::optim::Adam optimizer(groups);
  tutti::DataParallel parallel(job, *model);

  const auto first = model->parameters()[1].clone(), last = model->parameters()[3].clone();
  const auto batch = batch_of(1, job);
  parallel.next_weight(static_cast<double>(batch.x.size(0)));
  torch::mse_loss(model->forward(batch.x), batch.y).backward();
  optimizer.step();  // Adam's first step moves each element by its rate
  const auto moved = [](const torch::Tensor& a, const torch::Tensor& b) {
    return (a - b).abs().max().item<double>();
  };
  const auto slow = moved(first, model->parameters()[1]);
  const auto fast = moved(last, model->parameters()[3]);
  require(std::abs(slow - 1e-4) < 1e-7 && std::abs(fast - 1e-2) < 1e-5, "rates");
  end(job, text(slow) + " " + text(fast), *model);
}

void rates_of_a_trainer(const tutti::Job& job, const std::string&) {
  auto model = make_model();

  tutti::Optimizer optimizer(tutti::Adam{.lr = 1e-2});
  optimizer.group([](const std::string& name) { return name.starts_with("0."); },
                  tutti::Adam{.lr = 1e-4});
  tutti::Trainer trainer(job, *model, optimizer, {.shards = 4});

  const auto first = model->parameters()[1].clone(), last = model->parameters()[3].clone();
  trainer.step([&](tutti::Shard& shard) { return answer(shard, model); });
  const auto slow = (first - model->parameters()[1]).abs().max().item<double>();
  const auto fast = (last - model->parameters()[3]).abs().max().item<double>();
  require(std::abs(slow - 1e-4) < 1e-7 && std::abs(fast - 1e-2) < 1e-5, "rates");
  end(job, text(slow) + " " + text(fast), *model);
}

/// While it lives, matrix products and convolutions of this thread are computed in bfloat16.
class Bfloat16 {
 public:
  explicit Bfloat16(c10::DeviceType device = at::kCPU) : device_(device) {
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_enabled(device, true);
  }
  ~Bfloat16() {
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();  // of weights in bfloat16: the next update makes others
  }
  Bfloat16(const Bfloat16&) = delete;
  Bfloat16& operator=(const Bfloat16&) = delete;

 private:
  c10::DeviceType device_;
};

void autocast(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  model->to(torch::kFloat32);
  tutti::DataParallel parallel(job, *model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  double loss = 0;
  for (int step = 1; step <= 30; ++step) {
    const auto batch = batch_of(step, job);
    const auto x = batch.x.to(torch::kFloat32), y = batch.y.to(torch::kFloat32);

    optimizer.zero_grad();
    const auto scores = [&] {
      const Bfloat16 computes;
      return model->forward(x);
    }();  // backward runs outside of it
    parallel.next_weight(x.size(0));
    const auto error = torch::mse_loss(scores.to(torch::kFloat32), y);
    error.backward();  // gradients are float32, like the parameters
    optimizer.step();

    require(scores.scalar_type() == torch::kBFloat16, "computed in bfloat16");
    require(model->parameters()[0].grad().scalar_type() == torch::kFloat32, "gradients");
    loss = parallel.mean(error.item<double>(), static_cast<double>(x.size(0)));
  }
  end(job, loss < 1.2 ? "learned" : "loss " + text(loss), *model);
}

void autocast_in_a_trainer(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  model->to(torch::kFloat32);
  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 1e-2}, {.shards = 4});
  double loss = 0;
  for (int step = 1; step <= 30; ++step) {
    const auto result = trainer.step([&](tutti::Shard& shard) {
      const auto all = make_batch(kRows, static_cast<std::uint64_t>(4 * step + shard.index()));
      const auto scores = [&] {
        const Bfloat16 computes;
        return model->forward(all.x.to(torch::kFloat32));
      }();
      require(scores.scalar_type() == torch::kBFloat16, "computed in bfloat16");
      return shard.loss(torch::mse_loss(scores.to(torch::kFloat32), all.y.to(torch::kFloat32)));
    });
    loss = result.loss;
  }
  end(job, text(loss) + " " + tutti::parameters_sha256(*model), *model);
}

void ema(const tutti::Job& job, const std::string&) {
  Loop loop(job);
  auto& model = loop.model;

  auto averages = make_model();  // of the same shapes
  const auto follow = [&](double rate) {
    const torch::NoGradGuard no_grad;
    const auto now = model->parameters();
    auto average = averages->parameters();
    for (std::size_t p = 0; p < now.size(); ++p) average[p].lerp_(now[p], rate);
  };
  follow(1);
  for (int step = 1; step <= 20; ++step) {
    loop.train(1);
    follow(0.1);  // each worker does the same
  }

  require(!torch::equal(model->parameters()[0], averages->parameters()[0]), "an average");
  end(job, text(averages->parameters()[0].sum().item<double>()), *averages);
}

void ema_of_a_trainer(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  const auto test = make_batch(50, 7);
  const auto evaluation = [&](const std::vector<std::int64_t>& samples, tutti::ShardMetrics& sums) {
    const auto rows = torch::tensor(samples);
    const auto loss = torch::mse_loss(model->forward(test.x.index({rows})), test.y.index({rows}));
    sums.weighted_mean("loss", loss.item<double>(), static_cast<double>(samples.size()));
  };

  tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 1e-2}, {.shards = 4, .ema_decay = 0.9});
  for (int k = 0; k < 20; ++k) trainer.step([&](auto& shard) { return answer(shard, model); });
  double loss = 0;
  trainer.with_ema([&] { loss = trainer.evaluate(50, 10, evaluation)["loss"]; });

  require(trainer.evaluate(50, 10, evaluation)["loss"] != loss, "an average");
  end(job, text(loss), *model);
}

void sums(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  const auto all = make_batch(kRows, 3);
  const auto batch = mine(all, job);

  tutti::DataParallel parallel(job, *model, {.divide = tutti::Divide::not_at_all});
  torch::mse_loss(model->forward(batch.x), batch.y, torch::Reduction::Sum).backward();

  auto alone = make_model();
  torch::mse_loss(alone->forward(all.x), all.y, torch::Reduction::Sum).backward();
  for (std::size_t p = 0; p < 4; ++p) {
    const auto one = alone->parameters()[p].grad();
    require(torch::allclose(model->parameters()[p].grad(), one, 1e-12, 1e-12), "of one process");
  }
  end(job, text(model->parameters()[0].grad().sum().item<double>()), *model);
}

void uneven(const tutti::Job& job, const std::string&) {
  auto model = make_model();
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  tutti::DataParallel parallel(job, *model);
  std::vector<Batch> my_batches;  // rank 0 has two, the next one three; of other sizes, too
  for (int k = 0; k < 2 + job.rank(); ++k) {
    my_batches.push_back(make_batch(5 + k, static_cast<std::uint64_t>(10 * job.rank() + k)));
  }

  for (const auto& batch : my_batches) {
    optimizer.zero_grad();
    parallel.next_weight(static_cast<double>(batch.x.size(0)));  // rows: a mean over all of them
    torch::mse_loss(model->forward(batch.x), batch.y).backward();
    optimizer.step();
  }
  const auto answered = parallel.join([&] { optimizer.step(); });  // while others have batches

  require(answered == job.size() - 1 - job.rank(), "steps of the others");
  end(job, std::to_string(static_cast<std::int64_t>(my_batches.size()) + answered) + " steps",
      *model);
}

void log_metrics(const tutti::Job& job, const std::string& folder) {
  Loop loop(job);
  auto& parallel = loop.parallel;
  {
    std::ofstream log;
    if (job.rank() == 0) log.open(folder + "/log.jsonl");
    tutti::TensorBoard board(job, folder + "/runs/first");
    for (int step = 1; step <= 20; ++step) {
      loop.train(1);
      if (step % 10 != 0) continue;
      const double loss = parallel.mean(loop.test_loss(), loop.test.x.size(0));  // all call it
      if (job.rank() == 0)
        log << "{\"step\": " << step << ", \"loss\": " << loss << "}" << std::endl;
      board.scalar("loss/test", loss, step);  // the first worker writes
    }
  }
  std::string line, last;
  if (job.rank() == 0) {
    std::ifstream log(folder + "/log.jsonl");
    while (std::getline(log, line)) last = line;
  }
  end(job, last, *loop.model);
}

void from_python(const tutti::Job& job, const std::string& folder) {
  auto model = make_model();

  tutti::load_weights(*model, folder + "/weights.safetensors");
  tutti::DataParallel parallel(job, *model);  // or a Trainer: rank 0's parameters are everybody's

  for (const auto& parameter : model->parameters()) {  // the values that the file was written with
    const auto values = torch::arange(parameter.numel(), torch::kFloat64).view_as(parameter);
    require(torch::equal(parameter, values), "weights");
  }
  parallel.synchronize(0);
  end(job, "loaded", *model);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::map<std::string, std::function<void(const tutti::Job&, const std::string&)>> answers =
      {
          {"stop_early", stop_early},
          {"stop_a_trainer_early", stop_a_trainer_early},
          {"freeze", freeze},
          {"freeze_in_a_trainer", freeze_in_a_trainer},
          {"rates", rates},
          {"rates_of_a_trainer", rates_of_a_trainer},
          {"autocast", autocast},
          {"autocast_in_a_trainer", autocast_in_a_trainer},
          {"ema", ema},
          {"ema_of_a_trainer", ema_of_a_trainer},
          {"sums", sums},
          {"uneven", uneven},
          {"log_metrics", log_metrics},
          {"from_python", from_python},
  };
  if (argc != 3 || !answers.contains(argv[1])) throw std::runtime_error("usage: how ANSWER FOLDER");
  answers.at(argv[1])(tutti::Job::join(), argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
