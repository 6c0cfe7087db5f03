// torch's optimizers as rules of a Trainer: the same bytes as in a plain loop, on any number of
// workers, fresh or resumed; and those that cannot be run per tile are refused.

#include <filesystem>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::torch_optimizer_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using torch::optim::OptimizerCloneableOptions;
using torch::optim::OptimizerCloneableParamState;

Optimizer::Rule rms_prop() {
  return torch_optimizer<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true).weight_decay(0.01));
}
Optimizer::Rule ams_grad() {
  return torch_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
}
Optimizer::Rule adagrad() {
  return torch_optimizer<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.5).lr_decay(0.1));
}
Optimizer::Rule plain_sgd() {
  return torch_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
}

Optimizer::Rule rms_prop_with_a_kernel() {
  return RmsProp{.weight_decay = 0.01, .momentum = 0.9, .centered = true};
}
Optimizer::Rule ams_grad_with_a_kernel() { return Adam{.lr = 1e-2, .amsgrad = true}; }
Optimizer::Rule lion() { return Lion{.lr = 1e-3, .weight_decay = 0.1}; }

/// More than a tile in one parameter; the last one is never touched.
torch::nn::Sequential net() {
  auto made = torch::nn::Sequential(torch::nn::Linear(6, 700), torch::nn::Tanh(),
                                    torch::nn::Linear(700, 9));
  made->register_parameter("unused", torch::ones({7}));
  return made;
}

torch::Tensor loss_of(torch::nn::Sequential& model, std::uint64_t seed) {
  const auto x = torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(seed));
  return model->forward(x).square().mean();
}

constexpr std::int64_t kSteps = 6;
Schedule halved() { return Schedule::step_decay(3, 0.5); }

std::string train(int workers, const Optimizer& optimizer, TrainerOptions options,
                  torch::ScalarType type = torch::kFloat32) {
  options.seed = 3;
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    model->to(type);
    Trainer trainer(job, *model, optimizer, options);
    std::string ends;
    for (int step = 1; step <= kSteps; ++step) {
      const auto result = trainer.step([&](Shard& shard) {
        const auto x =
            torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(shard.seed())).to(type);
        return shard.loss(model->forward(x).square().mean(), 1 + shard.index() % 3);
      });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      ends += trainer.state_sha256();
    }
    EXPECT_TRUE(torch::equal(model->named_parameters()["unused"], torch::ones({7}, type)));
    return ends;
  });
}

void expect_same_on_any_number(const Optimizer& optimizer, const TrainerOptions& options,
                               torch::ScalarType type = torch::kFloat32) {
  const auto alone = train(1, optimizer, options, type);
  EXPECT_EQ(alone.size(), 64U * kSteps);
  for (const int workers : {2, 3, 5}) {
    EXPECT_EQ(train(workers, optimizer, options, type), alone) << workers << " workers";
  }
}

// promise: torch_optimizer.h#TorchOptimizer
TEST(TorchOptimizer, AnyNumberOfWorkersGivesTheBytesOfOne) {
  for (const auto& rule : {rms_prop(), ams_grad(), adagrad(), plain_sgd(), rms_prop_with_a_kernel(),
                           ams_grad_with_a_kernel(), lion()}) {
    SCOPED_TRACE(text_of(rule));
    expect_same_on_any_number(rule, {.shards = 5, .schedule = halved()});
  }
}
TEST(TorchOptimizer, AnyNumberOfWorkersWithClipsThatBind) {
  expect_same_on_any_number(rms_prop(), {.shards = 5, .clip = {.norm = 0.01, .value = 1e-4}});
}
TEST(TorchOptimizer, AnyNumberOfWorkersWithMasterCopies) {
  expect_same_on_any_number(rms_prop(), {.shards = 5}, torch::kBFloat16);
}
TEST(TorchOptimizer, AnyNumberOfWorkersWithTwoKindsOfRules) {
  const auto is_bias = [](const std::string& name) { return name.ends_with("bias"); };
  expect_same_on_any_number(Optimizer(rms_prop()).group(is_bias, Sgd{.lr = 0.1, .momentum = 0.9}),
                            {.shards = 5, .clip = {.norm = 0.01}});
}

/// With one shard, the trainer's parameters are those of a loop that runs the optimizer itself.
template <class Plain, class Options>
void expect_plain_loop(const Options& chosen) {
  on_workers(2, [&](const Job& job) {
    torch::manual_seed(1);
    auto mine = net();
    auto plain = net();
    copy_parameters(*mine, *plain);
    Plain optimizer(plain->parameters(), chosen);
    Trainer trainer(job, *mine, torch_optimizer<Plain>(chosen),
                    {.shards = 1, .schedule = halved()});
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const auto seed = static_cast<std::uint64_t>(step);
      trainer.step([&](Shard& shard) { return shard.loss(loss_of(mine, seed)); });
      optimizer.zero_grad();
      optimizer.param_groups()[0].options().set_lr(chosen.lr() * halved()(step));
      loss_of(plain, seed).backward();
      optimizer.step();
      EXPECT_EQ(parameters_sha256(*mine), parameters_sha256(*plain)) << "step " << step;
    }
  });
}

// To rounding: torch's compiler may contract what the kernel does not.
// promise: optimizer.h#Adagrad, optimizer.h#Optimizer
TEST(TorchOptimizer, TheAdagradWithAKernelIsTorchs) {
  on_workers(2, [&](const Job& job) {
    const auto trained = [&](const Optimizer& optimizer) {
      torch::manual_seed(1);
      auto model = net();
      Trainer trainer(job, *model, optimizer, {.shards = 2, .schedule = halved()});
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, step)); });
      }
      return model;
    };
    const auto kernel = trained(
        Adagrad{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.01, .initial_sum = 0.5, .eps = 1e-6});
    const auto torchs =
        trained(torch_optimizer<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1)
                                                           .lr_decay(0.1)
                                                           .weight_decay(0.01)
                                                           .initial_accumulator_value(0.5)
                                                           .eps(1e-6)));
    expect_close(*kernel, *torchs, 1e-6);
  });
}

// promise: schedule.h#per_epoch, torch_optimizer.h#TorchOptimizer
TEST(TorchOptimizer, OneShardGivesTheBytesOfAPlainLoop) {
  using namespace torch::optim;
  expect_plain_loop<RMSprop>(RMSpropOptions(1e-2).momentum(0.9).centered(true).weight_decay(0.01));
  expect_plain_loop<torch::optim::Adam>(AdamOptions(1e-2).amsgrad(true));
  expect_plain_loop<torch::optim::Adagrad>(
      AdagradOptions(1e-2).initial_accumulator_value(0.5).lr_decay(0.1));
  expect_plain_loop<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
  expect_plain_loop<torch::optim::AdamW>(AdamWOptions(1e-2));
}

/// Up to step `until`, from the folder's checkpoint where there is one; saves at the end.
std::string go_on(int workers, std::int64_t until, const Optimizer& optimizer,
                  const std::string& folder) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    Trainer trainer(job, *model, optimizer, {.shards = 4});
    trainer.load(folder);
    while (trainer.steps() < until) {
      trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard.seed())); });
    }
    trainer.save(folder);
    return trainer.state_sha256();
  });
}

// promise: optimizer.h#text_of, torch_optimizer.h#TorchOptimizer, trainer.h#load
TEST(TorchOptimizer, AStoppedRunGoesOnOnAnotherNumberOfWorkers) {
  const TemporaryFolder folder;
  for (const auto& rule : {rms_prop(), ams_grad(), adagrad(), plain_sgd()}) {
    SCOPED_TRACE(text_of(rule));
    const auto straight = go_on(1, 7, rule, folder.file("straight " + text_of(rule)));
    const auto run = folder.file(text_of(rule));
    go_on(3, 2, rule, run);
    go_on(1, 5, rule, run);
    EXPECT_EQ(go_on(2, 7, rule, run), straight);
  }
  const auto refusal = text_of<InvalidArgument>([&] {
    on_workers(1, [&](const Job& job) {
      auto model = net();
      Trainer trainer(job, *model, rms_prop(), {.shards = 4});
      EXPECT_THAT(
          text_of<InvalidArgument>([&] { trainer.load(folder.file(text_of(plain_sgd()))); }),
          AllOf(HasSubstr("is a checkpoint of another run"),
                HasSubstr("rule of 0.weight is torch SGD lr 0.1")));
    });
  });
  EXPECT_EQ(refusal, "");
}

// ---- what cannot be run per tile ----

struct OddOptions : OptimizerCloneableOptions<OddOptions> {
  double get_lr() const override { return 0.1; }
  void set_lr(double) override {}
  void serialize(torch::serialize::OutputArchive&) const override {}
};
struct OddState : OptimizerCloneableParamState<OddState> {
  TORCH_ARG(torch::Tensor, memory);

 public:
  void serialize(torch::serialize::InputArchive& archive) override {
    torch::IValue value;
    archive.read("memory", value);
    memory(value.toTensor());
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("memory", torch::IValue(memory()));
  }
};

/// Calls a function for each tensor with a gradient.
class Odd : public torch::optim::Optimizer {
 public:
  using Change = std::function<void(Odd& self, const torch::Tensor& tensor)>;
  Odd(std::vector<torch::Tensor> tensors, Change change)
      : Optimizer(std::move(tensors), std::make_unique<OddOptions>()), change_(std::move(change)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (const auto& tensor : param_groups_[0].params()) change_(*this, tensor);
    return {};
  }
  /// The state's tensor; null before keep().
  const torch::Tensor* kept(const torch::Tensor& tensor) {
    const auto found = state_.find(tensor.unsafeGetTensorImpl());
    return found == state_.end() ? nullptr : &static_cast<OddState&>(*found->second).memory();
  }
  void keep(const torch::Tensor& tensor, const torch::Tensor& memory) {
    auto state = std::make_unique<OddState>();
    state->memory(memory);
    state_[tensor.unsafeGetTensorImpl()] = std::move(state);
  }

 private:
  Change change_;
};

tutti::Optimizer::Rule odd(const Odd::Change& change) {
  return torch_optimizer([change](std::vector<torch::Tensor> tensors) {
    return std::make_unique<Odd>(std::move(tensors), change);
  });
}
void step_down(const torch::Tensor& tensor) {
  if (tensor.grad().defined()) tensor.add_(tensor.grad(), -0.1);
}
std::string refusal_of(const Odd::Change& change) {
  return text_of<InvalidArgument>([&] { odd(change); });
}

// promise: torch_optimizer.h#TorchOptimizer
TEST(TorchOptimizer, OnesOwnOptimizerIsARule) {
  const auto rule = odd([](Odd&, const torch::Tensor& tensor) { step_down(tensor); });
  EXPECT_THAT(text_of(rule), HasSubstr("Odd"));
  expect_same_on_any_number(rule, {.shards = 5});
}

// promise: torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, ItsTextIsTypeAndOptions) {
  EXPECT_EQ(text_of(plain_sgd()),
            "torch SGD lr 0.1 momentum 0 dampening 0 weight_decay 0 nesterov False");
  EXPECT_THAT(text_of(ams_grad()), AllOf(StartsWith("torch Adam lr 0.01 betas (0.9, 0.999)"),
                                         HasSubstr("amsgrad True")));
}

// promise: torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, OneThatNeedsTheWholeModelIsRefused) {
  EXPECT_THAT(text_of<InvalidArgument>(
                  [] { torch_optimizer<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1)); }),
              AllOf(StartsWith("LBFGS "), HasSubstr("cannot be run per tile: ")));
}
// promise: torch_optimizer.h#TorchOptimizer, torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, OneThatLooksAtNormsIsRefused) {  // as LARS and LAMB do
  EXPECT_THAT(refusal_of([](Odd&, const torch::Tensor& tensor) {
                if (tensor.grad().defined()) tensor.sub_(tensor.grad() / tensor.grad().norm());
              }),
              HasSubstr("it gives other bytes when a tensor is cut, so it is not element-wise "
                        "(LBFGS, LAMB and LARS are not"));
}
// promise: torch_optimizer.h#TorchOptimizer
TEST(TorchOptimizer, OneThatLooksAtRowsIsRefused) {  // as Adafactor does
  EXPECT_THAT(refusal_of([](Odd&, const torch::Tensor& tensor) {
                if (tensor.grad().defined()) tensor.sub_(tensor.grad().mean(-1, true));
              }),
              HasSubstr("it is not element-wise"));
}
// promise: torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, OneThatDrawsRandomNumbersIsRefused) {
  EXPECT_THAT(refusal_of([](Odd&, const torch::Tensor& tensor) {
                if (tensor.grad().defined()) tensor.add_(torch::randn_like(tensor));
              }),
              HasSubstr("draws random numbers"));
}
// promise: torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, OneThatChangesWhatHasNoGradientIsRefused) {
  EXPECT_THAT(refusal_of([](Odd&, const torch::Tensor& tensor) { tensor.mul_(0.9); }),
              HasSubstr("it changes a tensor that has no gradient"));
}
// promise: torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, StateOfAnotherSizeIsRefused) {
  EXPECT_THAT(refusal_of([](Odd& self, const torch::Tensor& tensor) {
                step_down(tensor);
                self.keep(tensor, torch::zeros({3}));
              }),
              HasSubstr("its state \"memory\" has another size or type than the parameter"));
}
// promise: torch_optimizer.h#torch_optimizer
TEST(TorchOptimizer, StateThatMovesIsRefused) {
  EXPECT_THAT(refusal_of([](Odd& self, const torch::Tensor& tensor) {
                if (!tensor.grad().defined()) return;
                step_down(tensor);
                const auto* const last = self.kept(tensor);
                self.keep(tensor, last == nullptr ? tensor.grad().clone() : *last + tensor.grad());
              }),
              HasSubstr("its state \"memory\" does not stay in one place"));
}
// promise: torch_optimizer.h#TorchOptimizer
TEST(TorchOptimizer, AFactoryThatMakesNothingUsefulIsRefused) {
  EXPECT_THAT(text_of<InvalidArgument>([] { torch_optimizer(nullptr); }), HasSubstr("no factory"));
  EXPECT_THAT(text_of<InvalidArgument>([] {
                torch_optimizer([](std::vector<torch::Tensor>) {
                  return std::unique_ptr<torch::optim::Optimizer>();
                });
              }),
              HasSubstr("made nothing"));
  EXPECT_THAT(text_of<InvalidArgument>([] {
                torch_optimizer([](std::vector<torch::Tensor> tensors) {
                  tensors.push_back(torch::ones({1}));
                  return std::make_unique<torch::optim::SGD>(tensors,
                                                             torch::optim::SGDOptions(0.1));
                });
              }),
              HasSubstr("one group of the tensors it is given"));
  EXPECT_THAT(text_of<InvalidArgument>([] { Optimizer(TorchOptim{}); }),
              HasSubstr("not by torch_optimizer()"));
}

TEST(TorchOptimizer, OneThatFailsInAnUpdateEndsTheTrainerOnAllWorkers) {
  const TemporaryFolder folder;
  on_workers(3, [&](const Job& job) {
    auto armed = std::make_shared<bool>(false);
    const auto rule = odd([armed](Odd&, const torch::Tensor& tensor) {
      if (*armed) throw std::runtime_error("out of ideas");
      step_down(tensor);
    });
    auto model = net();
    Trainer trainer(job, *model, rule, {.shards = 3});
    const auto step = [&] {
      trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard.seed())); });
    };
    step();
    *armed = job.rank() == 1;
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(text_of<Mismatch>(step),
                  AllOf(HasSubstr("its optimizer failed in the middle of an update: out of ideas"),
                        HasSubstr("parameter \"")));
    }
    // Some tiles are new and others old: no checkpoint is made of that.
    EXPECT_THAT(text_of<Mismatch>([&] { trainer.save(folder.file("run")); }),
                HasSubstr("in the middle of an update"));
    EXPECT_FALSE(std::filesystem::exists(folder.file("run")));
  });
}

}  // namespace
}  // namespace tutti::test::torch_optimizer_cases
