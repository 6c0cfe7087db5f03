// Models that are no torch::nn::Module: TorchScript's, and lists of tensors.

#include "tutti/named_module.h"

#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <filesystem>
#include <sstream>

#include "support/running_command.h"
#include "torch/training.h"
#include "tutti/load_weights.h"

namespace tutti::test::named_module_cases {
namespace {

using ::testing::HasSubstr;
namespace nn = torch::nn;

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

torch::jit::Module part(const std::string& name, std::uint64_t seed, std::int64_t in,
                        std::int64_t out, const std::string& code) {
  torch::jit::Module module(name);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight", draw(seed, {out, in}).requires_grad_(), false);
  module.register_parameter("bias", draw(seed + 1, {out}).requires_grad_(), false);
  module.define(code);
  return module;
}

/// Parts, a branch by the mode, dropout, a buffer, a parameter that is not trained; one that
/// TorchScript's executor fuses in training.
torch::jit::Module scripted() {
  torch::jit::Module net("net");
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_module("first", part("first", 1, 6, 17,
                                    "def forward(self, x):\n"
                                    "  h = torch.tanh(torch.linear(x, self.weight, self.bias))\n"
                                    "  g = torch.sigmoid(h * 2.0 + 1.0) * h\n"
                                    "  return torch.dropout(g * g, 0.3, self.training)\n"));
  net.register_module("second", part("second", 3, 17, 3,
                                     "def forward(self, x):\n"
                                     "  return torch.linear(x, self.weight, self.bias)\n"));
  net.register_parameter("scale", draw(5, {3}), false);  // not trained
  net.register_buffer("calls", torch::zeros({}, torch::kInt64));
  net.define(
      "def forward(self, x):\n"
      "  if self.training:\n"
      "    self.calls.add_(1)\n"
      "  return self.second.forward(self.first.forward(x)) * self.scale\n"
      "def mode(self):\n"
      "  return self.first.training\n");
  return net;
}

/// The same in C++.
struct PlainImpl : nn::Module {
  PlainImpl() {
    for (const auto& [name, value] : load()) {
      const auto at = register_module(name, std::make_shared<nn::LinearImpl>(nn::LinearOptions(
                                                value[0].size(1), value[0].size(0))));
      const torch::NoGradGuard no_grad;
      at->weight.copy_(value[0]);
      at->bias.copy_(value[1]);
    }
    scale = register_parameter("scale", draw(5, {3}), false);
    calls = register_buffer("calls", torch::zeros({}, torch::kInt64));
  }
  static std::vector<std::pair<std::string, std::vector<torch::Tensor>>> load() {
    return {{"first", {draw(1, {17, 6}), draw(2, {17})}},
            {"second", {draw(3, {3, 17}), draw(4, {3})}}};
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) calls.add_(1);
    const auto linear = [&](const char* name) {
      return std::dynamic_pointer_cast<nn::LinearImpl>(named_children()[name]);
    };
    const auto h = torch::tanh(linear("first")->forward(x));
    const auto g = torch::sigmoid(h * 2.0 + 1.0) * h;
    return linear("second")->forward(torch::dropout(g * g, 0.3, is_training())) * scale;
  }
  torch::Tensor scale, calls;
};
TORCH_MODULE(Plain);

/// Bytes of parameters and buffers after six steps.
std::string trained(const Job& job, nn::Module& module,
                    const std::function<torch::Tensor(const torch::Tensor&)>& forward,
                    const std::string& folder = "") {
  const auto train = [&](std::int64_t until) {
    Trainer trainer(job, module, Adam{.lr = 0.01}, {.shards = 5, .seed = 3});
    if (!folder.empty()) trainer.load(folder);
    while (trainer.steps() < until) {
      trainer.step([&](Shard& shard) {
        return shard.loss(forward(draw(shard.seed(), {4, 6})).square().mean());
      });
    }
    const auto evaluated = trainer.evaluate(4, 1, [&](const auto& samples, ShardMetrics& metrics) {
      EXPECT_FALSE(module.is_training());
      const auto x = draw(static_cast<std::uint64_t>(samples[0]), {4, 6});
      metrics.mean("loss", forward(x).square().mean().item<double>());
    });
    EXPECT_TRUE(module.is_training());
    if (!folder.empty()) trainer.save(folder);
    return evaluated["loss"];
  };
  if (!folder.empty()) train(3);
  auto text = fmt::to_string(train(6));
  text += ' ' + parameters_sha256(module);
  for (const auto& item : module.named_buffers())
    text += fmt::format(" {}", item.value().sum().item<double>());
  return text;
}

std::string trained_script(const Job& job, const std::string& folder = "") {
  ScriptModule model(scripted());
  return trained(
      job, *model, [&](const torch::Tensor& x) { return model->forward({x}).toTensor(); }, folder);
}

// promise: named_module.h#ScriptModuleImpl, how#train-a-model-that-python-has-defined
TEST(ScriptModule, IsTrainedToTheBytesOfItsTwinInCppOnAnyNumberOfWorkers) {
  const auto twin = text_of_rank_0(1, [](const Job& job) {
    Plain model;
    return trained(job, *model, [&](const torch::Tensor& x) { return model->forward(x); });
  });
  for (const int workers : {1, 2, 3}) {
    EXPECT_EQ(text_of_rank_0(workers, [](const Job& job) { return trained_script(job); }), twin)
        << workers;
    const TemporaryFolder folder;
    EXPECT_EQ(text_of_rank_0(
                  workers, [&](const Job& job) { return trained_script(job, folder.file("run")); }),
              twin)
        << workers << ", saved and resumed";
  }
}

// promise: named_module.h#ScriptModuleImpl
TEST(ScriptModule, HasTheScriptsTensorsAndModesUnderTheirNames) {
  const auto script = scripted();
  ScriptModule model(script);
  EXPECT_EQ(model->named_parameters().keys(),
            (std::vector<std::string>{"scale", "first.weight", "first.bias", "second.weight",
                                      "second.bias"}));
  EXPECT_FALSE(model->named_parameters()["scale"].requires_grad());
  EXPECT_EQ(model->named_buffers().keys(), (std::vector<std::string>{"calls"}));
  for (const auto& item : script.named_parameters()) {
    EXPECT_TRUE(model->named_parameters()[item.name].is_same(item.value)) << item.name;
  }
  EXPECT_TRUE(model->run("mode", {}).toBool());
  model->eval();
  EXPECT_FALSE(model->run("mode", {}).toBool());
  EXPECT_FALSE(script.is_training());
  model->train();
  model->named_children()["first"]->eval();  // a part alone, as for fine-tuning
  EXPECT_FALSE(model->run("mode", {}).toBool());
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->named_children()["first"]->is_training());
}

// promise: named_module.h#ScriptModuleImpl
TEST(ScriptModule, ASavedScriptHasWhatWasTrained) {
  on_workers(2, [](const Job& job) {
    auto script = scripted();
    ScriptModule model(script);
    {
      DataParallel parallel(job, *model);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      for (std::uint64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const auto x = draw(10 * step + static_cast<std::uint64_t>(job.rank()), {4, 6});
        model->forward({x}).toTensor().square().mean().backward();
        optimizer.step();
      }
    }
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    trainer.step([&](Shard& shard) {
      return shard.loss(model->forward({draw(shard.seed(), {4, 6})}).toTensor().square().mean());
    });
    std::stringstream file;
    script.save(file);
    auto read = torch::jit::load(file);
    for (const auto& item : read.named_parameters()) {
      EXPECT_TRUE(item.value.equal(model->named_parameters()[item.name])) << item.name;
    }
  });
}

/// A mean of what it has seen, which forward assigns and evaluation reads.
torch::jit::Module assigning() {
  torch::jit::Module net("net");
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_attribute("calls", c10::IntType::get(), 0);
  net.register_attribute("sizes", c10::ListType::ofInts(), c10::List<std::int64_t>({1, 2}));
  net.register_parameter("weight", draw(1, {6}).requires_grad_(), false);
  net.register_buffer("seen", torch::zeros({6}));
  net.define(
      "def forward(self, x):\n"
      "  if self.training:\n"
      "    self.seen = self.seen * 0.5 + x.mean(0) * 0.5\n"
      "    return x * self.weight\n"
      "  return x * self.weight + self.seen\n"
      "def fail(self, x):\n"
      "  self.seen = self.seen + 1.0\n"
      "  return torch.linear(x, torch.zeros([2, 2]))\n"
      "def narrow(self, x):\n"
      "  self.seen = torch.zeros([2])\n"
      "  return x\n"
      "def count(self, x):\n"
      "  self.calls = self.calls + 1\n"
      "  return x\n"
      "def grow(self, x):\n"
      "  self.sizes.append(3)\n"
      "  return x\n");
  return net;
}

// promise: named_module.h#ScriptModuleImpl
TEST(ScriptModule, ABufferThatItAssignsIsTheSameOnAnyNumberOfWorkers) {
  const auto train = [](const Job& job) {
    auto script = assigning();
    ScriptModule model(script);
    const auto text = trained(
        job, *model, [&](const torch::Tensor& x) { return model->forward({x}).toTensor(); },
        /*folder=*/"");
    EXPECT_TRUE(script.attr("seen").toTensor().is_same(model->named_buffers()["seen"]));
    EXPECT_GT(script.attr("seen").toTensor().abs().sum().item<double>(), 0);
    return text + fmt::format(" {}", script.attr("seen").toTensor().sum().item<double>());
  };
  const auto alone = text_of_rank_0(1, train);
  EXPECT_EQ(text_of_rank_0(2, train), alone);
  EXPECT_EQ(text_of_rank_0(3, train), alone);
}

// promise: named_module.h#ScriptModuleImpl
TEST(ScriptModule, WhatItChangesThatNobodyElseHasIsRefused) {
  auto script = assigning();
  ScriptModule model(script);
  const auto x = torch::ones({2, 6});
  model->forward({x});
  const auto before = model->named_buffers()["seen"].clone();
  EXPECT_ANY_THROW(model->run("fail", {x}));
  EXPECT_TRUE(torch::equal(script.attr("seen").toTensor(), before)) << "an exception leaves it";
  EXPECT_THAT(text_of<InvalidArgument>([&] { model->run("narrow", {x}); }),
              HasSubstr("has assigned its buffer \"seen\""));
  EXPECT_THAT(text_of<InvalidArgument>([&] { model->run("count", {x}); }),
              HasSubstr("count() of the script has changed its attribute \"calls\""));
  EXPECT_THAT(text_of<InvalidArgument>([&] { model->run("grow", {x}); }),
              HasSubstr("attribute \"sizes\""));
  EXPECT_TRUE(torch::equal(model->named_buffers()["seen"], before));
  script.setattr("weight", torch::ones({6}).requires_grad_());
  EXPECT_THAT(text_of<InvalidArgument>([&] { model->forward({x}); }),
              HasSubstr("another tensor as its parameter \"weight\""));
}

// promise: named_module.h#ScriptModuleImpl
TEST(ScriptModule, WhoseParametersAreConstantsIsRefused) {
  auto script = scripted();
  script.eval();
  const auto frozen = torch::jit::freeze_module(script);
  EXPECT_THAT(text_of<InvalidArgument>([&] { ScriptModule model(frozen); }),
              HasSubstr("torch.jit.freeze()"));
}

// promise: named_module.h#module_of
TEST(ModuleOf, TensorsIsTrainedAsTheModuleThatHasThem) {
  for (const int workers : {1, 2, 3}) {
    const auto train = [&](bool is_listed) {
      return text_of_rank_0(workers, [&](const Job& job) {
        Plain model;
        std::vector<std::pair<std::string, torch::Tensor>> parameters, buffers;
        for (const auto& item : model->named_parameters()) parameters.emplace_back(item.pair());
        for (const auto& item : model->named_buffers()) buffers.emplace_back(item.pair());
        const auto listed = module_of(parameters, buffers);
        EXPECT_EQ(listed->named_parameters().size(), 5u);
        for (const auto& item : parameters) {
          EXPECT_TRUE(listed->named_parameters()[item.first].is_same(item.second)) << item.first;
        }
        auto& module = is_listed ? *listed : static_cast<nn::Module&>(*model);
        return trained(job, module, [&](const torch::Tensor& x) {
          model->train(module.is_training());
          return model->forward(x);
        });
      });
    };
    const auto listed = train(true), own = train(false);
    EXPECT_EQ(listed, own) << workers;
    EXPECT_FALSE(own.empty());
  }
}

// promise: named_module.h#module_of
TEST(ModuleOf, NamesThatAreNoneAreRefused) {
  const auto tensor = torch::zeros({2});
  const auto text = [&](const std::vector<std::pair<std::string, torch::Tensor>>& parameters,
                        const std::vector<std::pair<std::string, torch::Tensor>>& buffers = {}) {
    return text_of<InvalidArgument>([&] { module_of(parameters, buffers); });
  };
  EXPECT_THAT(text({{"a", tensor}, {"a", tensor}}), HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(text({{"a", tensor}}, {{"a", tensor}}), HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(text({{"a", tensor}, {"a.b", tensor}}), HasSubstr("\"a.b\" is there twice, or as"));
  EXPECT_THAT(text({{"a.b", tensor}, {"a", tensor}}), HasSubstr("\"a\" is there twice, or as"));
  EXPECT_THAT(text({{"", tensor}}), HasSubstr("empty part"));
  EXPECT_THAT(text({{"a..b", tensor}}), HasSubstr("empty part"));
  EXPECT_THAT(text({{"a.", tensor}}), HasSubstr("empty part"));
  EXPECT_THAT(text({{"a", torch::Tensor()}}), HasSubstr("\"a\" is undefined"));
}

}  // namespace
}  // namespace tutti::test::named_module_cases
