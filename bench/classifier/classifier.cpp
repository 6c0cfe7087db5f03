// One rank that trains a classifier of so many classes on given features: split, chunked and
// perhaps sampled by Tutti, or by libtorch's dense layer. Or it does what bounds a step.
//
//   bench_classifier SOCKET (split | dense | bound) CLASSES DIM BATCH RATE
//
// Under `tutti run` each rank has its share of the batch; of a bound, of the classes. "steps N" is
// answered with the nanoseconds of each step, "peak" with [most bytes that were held besides what
// was there before the layer was made, bytes of the weights and their momentum]. A step of a bound
// is the four products of a batch with the weights, and "streams N" is about the memory that a step
// moves.

#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "classifier/streams.h"
#include "common/control.h"
#include "tutti/tutti.h"

namespace {

std::int64_t status(const char* entry) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != entry) continue;
    std::int64_t kilobytes = 0;
    file >> kilobytes;
    return kilobytes * 1024;
  }
  bench::fail("no " + std::string(entry) + " in /proc/self/status");
}

struct Layer {
  std::function<void()> step;
  std::int64_t bytes;
};

Layer split(const tutti::Group& group, const torch::Tensor& x, const torch::Tensor& y,
            std::int64_t classes, double rate, std::int64_t batch) {
  tutti::ParallelCrossEntropy head(group, x.size(1), classes,
                                   tutti::Sgd{.lr = 0.1, .momentum = 0.9},
                                   {.reduction = tutti::LossReduction::sum, .sample_rate = rate});
  const auto step = [=]() mutable {
    (head->forward(x, y) / batch).backward();
    head->step();
    x.mutable_grad().reset();
  };
  return {step, static_cast<std::int64_t>(head->bytes())};
}

Layer dense(const torch::Tensor& x, const torch::Tensor& y, std::int64_t classes) {
  torch::nn::Linear head(torch::nn::LinearOptions(x.size(1), classes).bias(false));
  const auto optimizer = std::make_shared<torch::optim::SGD>(
      head->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto step = [=]() mutable {
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(head->forward(x), y).backward();
    optimizer->step();
    x.mutable_grad().reset();
  };
  return {step, static_cast<std::int64_t>(2 * head->weight.nbytes())};
}

/// The products of a step with all samples, chunk by chunk. A chunk's weights stay in the cache:
/// they are those of all chunks.
class Products {
 public:
  Products(std::int64_t classes, std::int64_t dim, std::int64_t batch)
      : classes_(classes), x_(torch::randn({batch, dim})) {
    const auto chunk = std::min<std::int64_t>(kChunk, classes);
    weights_ = torch::randn({chunk, dim});
    logits_ = torch::empty({batch, chunk});
    features_ = torch::empty({batch, dim});
    gradient_ = torch::empty({chunk, dim});
  }
  void step() {
    const torch::NoGradGuard no_grad;
    for (std::int64_t at = 0; at < classes_; at += kChunk) {
      const auto size = std::min(kChunk, classes_ - at);
      const auto weights = weights_.slice(0, 0, size);
      auto logits = logits_.slice(1, 0, size);
      at::mm_out(logits, x_, weights.t());
      at::mm_out(features_, logits, weights);
      at::mm_out(logits, x_, weights.t());
      auto gradient = gradient_.slice(0, 0, size);
      at::mm_out(gradient, logits.t(), x_);
    }
  }

 private:
  static constexpr std::int64_t kChunk = 2048;
  std::int64_t classes_;
  torch::Tensor x_, weights_, logits_, features_, gradient_;
};

/// Answers for a bound, until the driver hangs up. Of more than a million classes a million are
/// computed, and the times multiplied: all are alike.
void serve_bound(bench::Control& control, std::int64_t classes, std::int64_t dim,
                 std::int64_t batch) {
  const auto measured = std::min<std::int64_t>(classes, 1'000'000);
  const double times = static_cast<double>(classes) / static_cast<double>(measured);
  Products products(measured, dim, batch);
  auto weights = torch::ones({measured * dim});
  auto momentum = torch::ones({measured * dim});
  float sum = 0;
  std::istringstream command;
  while (control.next(command)) {
    std::string what;
    int steps = 0;
    command >> what >> steps;
    std::vector<std::int64_t> taken;
    if (what == "steps") {
      taken = bench::measure(steps, [&] { products.step(); });
    } else if (what == "streams") {
      taken = bench::measure(steps, [&] {
        sum += touch_weights(weights.data_ptr<float>(), momentum.data_ptr<float>(),
                             static_cast<std::size_t>(measured * dim));
      });
      if (sum < 0) bench::fail("the sum of the weights is negative");
    } else {
      bench::fail("unknown command: " + what);
    }
    for (auto& value : taken) value = static_cast<std::int64_t>(static_cast<double>(value) * times);
    control.send(taken);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) {
    bench::fail(
        "usage: tutti run -n N bench_classifier SOCKET (split|dense|bound) CLASSES DIM BATCH RATE");
  }
  const auto job = tutti::Job::join();
  const tutti::Group group(job);
  const std::string way = arguments[2];
  const auto classes = std::stoll(arguments[3]);
  const auto dim = std::stoll(arguments[4]);
  const auto batch = std::stoll(arguments[5]);
  torch::set_num_threads(1);
  bench::Control control(arguments[1], job.rank());
  torch::manual_seed(1);
  if (way == "bound") {
    const auto [first, last] = tutti::share_of(classes, group);
    serve_bound(control, last - first, dim, batch);
    return 0;
  }
  const auto [begin, end] = tutti::share_of(batch, group);
  const auto x = torch::randn({batch, dim}).slice(0, begin, end).clone().requires_grad_();
  const auto y = torch::randint(classes, {batch}, torch::kInt64).slice(0, begin, end).clone();
  const auto layer_of = [&](std::int64_t of) {
    const auto labels = y.remainder(of);
    return way == "split" ? split(group, x, labels, of, std::stod(arguments[6]), batch)
                          : dense(x, labels, of);
  };
  layer_of(64).step();  // libraries load and allocate on first use
  malloc_trim(0);
  const auto before = status("VmRSS:");
  auto layer = layer_of(classes);
  std::istringstream command;
  while (control.next(command)) {
    std::string what;
    int steps = 0;
    command >> what >> steps;
    if (what == "steps") {
      control.send(bench::measure(steps, layer.step));
    } else if (what == "peak") {
      control.send(std::vector<std::int64_t>{status("VmHWM:") - before, layer.bytes});
    } else {
      bench::fail("unknown command: " + what);
    }
  }
}
