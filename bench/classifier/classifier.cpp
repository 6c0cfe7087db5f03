// One rank that trains a classifier of so many classes on given features: split, chunked and
// perhaps sampled by Tutti, or by libtorch's dense layer.
//
//   bench_classifier SOCKET (split | dense) CLASSES DIM BATCH RATE
//
// Under `tutti run` each rank has its share of the batch. "steps N" is answered with the
// nanoseconds of each step, "peak" with [most bytes that were held besides what was there before
// the layer was made, bytes of the weights and their momentum].

#include <malloc.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>

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

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) {
    bench::fail(
        "usage: tutti run -n N bench_classifier SOCKET (split|dense) CLASSES DIM BATCH RATE");
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
