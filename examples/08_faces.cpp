// A classifier of as many classes as fit the memory of all workers: the last layer is split over
// them (docs/split_layers.md). Its features are made up: each class has a centre of its own, and
// what is seen of it is blurred, most of all along a few directions that mean nothing.
//
//   build/bin/tutti run -n 2 build/bin/faces --classes 10000000 --sample-rate 0.1 --steps 5
//   build/bin/tutti run -n 2 build/bin/faces --classes 1000 --steps 1500

#include <sys/resource.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>

#include "tutti/tutti.h"

namespace {

/// As many centres are small enough to be looked at all at once.
constexpr std::int64_t kCompared = 10000;

struct Options {
  std::int64_t classes = 1000;
  std::int64_t dim = 64;
  double sample_rate = 1;
  std::int64_t steps = 1500;
  std::int64_t batch = 128;  // of all workers together
  double lr = 0.5;
  double margin = 0.1;  // CosFace's
  double scale = 24;
  std::uint64_t seed = 1;
};

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

struct Faces {
  explicit Faces(const Options& options)
      : options_(options), nuisance_(draw(options.seed + 1, {options.dim / 4, options.dim})) {}

  /// Samples [begin, end) of a step's batch, the same on any number of workers.
  std::pair<torch::Tensor, torch::Tensor> batch(std::int64_t step, std::int64_t begin,
                                                std::int64_t end) const {
    auto features = torch::empty({end - begin, options_.dim});
    auto labels = torch::empty({end - begin}, torch::kInt64);
    for (auto i = begin; i < end; ++i) {
      const auto number = static_cast<std::uint64_t>(step * options_.batch + i);
      const auto seed = options_.seed + 1000003 * (number + 1);
      auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
      const auto label =
          torch::randint(options_.classes, {1}, generator, torch::TensorOptions(torch::kInt64));
      const auto blur = torch::randn({options_.dim}, generator) * 0.25;
      const auto noise = torch::randn({nuisance_.size(0)}, generator).matmul(nuisance_) * 0.5;
      features[i - begin] = centre(label.item<std::int64_t>()) + blur + noise;
      labels[i - begin] = label[0];
    }
    return {features, labels};
  }

  /// Whose centre is the nearest, for each sample.
  torch::Tensor nearest(const torch::Tensor& features) const {
    std::vector<torch::Tensor> centres;
    for (std::int64_t c = 0; c < options_.classes; ++c) centres.push_back(centre(c));
    return torch::cdist(features, torch::stack(centres)).argmin(1);
  }

 private:
  torch::Tensor centre(std::int64_t label) const {
    return draw(~options_.seed - static_cast<std::uint64_t>(label), {options_.dim});
  }

  Options options_;
  torch::Tensor nuisance_;
};

/// "1.50 GB", "512.00 KB".
std::string size_text(double bytes) {
  const bool is_large = bytes >= 1e9;
  const bool is_small = bytes < 1e6;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s",
                bytes / (is_large   ? 1e9
                         : is_small ? 1e3
                                    : 1e6),
                is_large   ? "GB"
                : is_small ? "KB"
                           : "MB");
  return text;
}

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

void run(const Options& options) {
  const auto job = tutti::Job::join();
  const tutti::Group group(job);
  const bool speaks = job.rank() == 0;
  const tutti::Sgd rule{.lr = options.lr, .momentum = 0.9};
  const tutti::ParallelCrossEntropyOptions head_options{
      .margin = tutti::cos_face(options.margin, options.scale),
      .reduction = tutti::LossReduction::sum,
      .sample_rate = options.sample_rate,
      .seed = options.seed,
      .name = "faces"};
  const auto memory =
      tutti::classifier_memory(job.size(), options.dim, options.classes, rule, head_options);
  if (speaks) {
    std::printf(
        "%lld classes of %lld features: %s of weights and momentum in all, %s for the worker with "
        "most of them\n",
        static_cast<long long>(options.classes), static_cast<long long>(options.dim),
        size_text(static_cast<double>(memory.of_all)).c_str(),
        size_text(static_cast<double>(memory.largest_member)).c_str());
    std::fflush(stdout);
  }
  tutti::ParallelCrossEntropy head(group, options.dim, options.classes, rule, head_options);

  const Faces faces(options);
  const auto [begin, end] = tutti::share_of(options.batch, group);
  const auto started = std::chrono::steady_clock::now();
  double correct = 0;  // a running mean
  tutti::Progress progress(0, options.steps);
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    const auto [features, labels] = faces.batch(step, begin, end);
    const auto loss = head->forward(features, labels);
    (loss / options.batch).backward();
    head->step(std::min(
        1.0, 2 * (1 - static_cast<double>(step - 1) / static_cast<double>(options.steps))));
    auto sums = torch::stack({loss.detach(), head->correct().sum().to(torch::kFloat32)});
    tutti::all_reduce(group, sums, tutti::Reduction::sum);
    sums /= options.batch;
    const auto now = sums[1].item<double>();
    correct = step == 1 ? now : correct + (now - correct) * std::max(0.02, 1.0 / step);
    if (speaks) {
      char text[32];
      std::snprintf(text, sizeof text, "loss %.4f", sums[0].item<double>());
      progress.show(step, text);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  double peak = peak_bytes();
  group.all_reduce({&peak, 1, tutti::DType::float64}, tutti::Reduction::sum);
  double nearest = 0;  // what one gets who knows the centres, and learns nothing
  if (options.classes <= kCompared) {
    const auto [features, labels] = faces.batch(options.steps + 1, begin, end);
    nearest = faces.nearest(features).eq(labels).sum().item<double>() /
              static_cast<double>(options.batch);
    group.all_reduce({&nearest, 1, tutti::DType::float64}, tutti::Reduction::sum);
  }
  const auto hash = head->sha256();
  if (!speaks) return;
  std::printf("training accuracy among the classes that took part %.4f, mean of the last steps\n",
              correct);
  if (options.classes <= kCompared) {
    std::printf("beside it: whose centre is the nearest, without learning, %.4f\n", nearest);
  }
  std::printf("%.1f samples/s, at most %.2f GB of memory in all\n",
              static_cast<double>(options.steps * options.batch) / took.count(), peak * 1e-9);
  std::printf("parameters sha256 %s\n", hash.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("A classifier whose classes are split over the workers");
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 48, "POSITIVE");
  app.add_option("--classes", options.classes, "Classes of the last layer")->check(positive);
  app.add_option("--dim", options.dim, "Features of a sample")->check(positive);
  app.add_option("--sample-rate", options.sample_rate, "Share of the classes in each step's loss");
  app.add_option("--steps", options.steps, "Batches")->check(positive);
  app.add_option("--batch", options.batch, "Samples of all workers in a step")->check(positive);
  app.add_option("--lr", options.lr, "Learning rate");
  app.add_option("--margin", options.margin, "CosFace's margin of the cosine")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--scale", options.scale, "Scale of the cosine");
  app.add_option("--seed", options.seed, "Of everything");
  for (auto* option : app.get_options()) {
    if (option->get_name() != "--help") option->capture_default_str();
  }
  try {
    app.parse(argc, argv);
    run(options);
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "faces: %s (--help lists the options)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "faces: %s\n", error.what());
    return 1;
  }
}
