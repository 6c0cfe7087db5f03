// Parameters and buffers from safetensors files, as Python writes them.

#include "tutti/load_weights.h"

#include <filesystem>
#include <fstream>

#include "run/files/safetensors_writer.h"
#include "support/running_command.h"
#include "torch/run/stored_tensors.h"
#include "torch/training.h"

namespace tutti::test::load_weights_cases {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Net : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(3, 2))};
  nn::BatchNorm1d norm{register_module("norm", nn::BatchNorm1d(2))};
};

/// A value for each parameter and buffer: 1, 2, 3 … in the order of their names.
NamedTensors numbered(const nn::Module& module) {
  NamedTensors all;
  double number = 0;
  const auto add = [&](const std::string& name, const torch::Tensor& like) {
    all.emplace_back(name, torch::full_like(like, ++number).detach());
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return all;
}

class LoadWeights : public ::testing::Test {
 protected:
  std::string written(const NamedTensors& tensors, const std::string& name = "model.safetensors") {
    SafetensorsContent content{.name = name};
    for (const auto& [of_tensor, tensor] : tensors) {
      const auto view = view_of(of_tensor, tensor);
      content.tensors.push_back({.name = of_tensor,
                                 .type = view.type,
                                 .shape = view.shape,
                                 .data = {view.data, tensor.nbytes()}});
    }
    std::filesystem::remove(folder_.file(name));
    SafetensorsWriter(content).write(*host_files(),
                                     std::filesystem::path(folder_.file(name)).parent_path());
    return folder_.file(name);
  }
  static void expect(const nn::Module& module, const NamedTensors& values) {
    const auto parameters = module.named_parameters();
    const auto buffers = module.named_buffers();
    for (const auto& [name, value] : values) {
      const auto* const parameter = parameters.find(name);
      const auto& tensor = parameter != nullptr ? *parameter : buffers[name];
      EXPECT_TRUE(torch::equal(tensor, value.to(tensor.scalar_type()))) << name;
    }
  }

  TemporaryFolder folder_;
};

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, TakesParametersAndBuffersOfTheSameNames) {
  Net net;
  const auto values = numbered(net);
  const auto loaded = load_weights(net, written(values));
  expect(net, values);
  EXPECT_THAT(loaded.missing, IsEmpty());
  EXPECT_THAT(loaded.unexpected, IsEmpty());
}

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, ConvertsNumbersOfFloatingPoint) {
  Net net;
  auto values = numbered(net);
  for (auto& [name, tensor] : values) {
    if (tensor.is_floating_point()) tensor = tensor.to(torch::kBFloat16);
  }
  net.first->to(torch::kFloat64);
  load_weights(net, written(values));
  expect(net, values);
  EXPECT_EQ(net.first->weight.scalar_type(), torch::kFloat64);
  EXPECT_EQ(net.norm->running_mean.scalar_type(), torch::kFloat32);
}

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, NamesAllThatDoesNotFitAtOnceAndChangesNothing) {
  Net net;
  const auto before = numbered(net);
  load_weights(net, written(before));
  const auto file = written({{"first.weight", torch::zeros({2, 4})},
                             {"first.bias", torch::zeros({2})},
                             {"norm.weight", torch::zeros({2}, torch::kInt64)},
                             {"norm.num_batches_tracked", torch::zeros({})},
                             {"head.weight", torch::zeros({1})},
                             {"head.bias", torch::zeros({1})}});
  EXPECT_THAT(
      text_of<InvalidArgument>([&] { load_weights(net, file); }),
      AllOf(HasSubstr("model.safetensors does not fit the model: "),
            HasSubstr("\"first.weight\" is F32 [2, 4], and Float [2, 3] in the model"),
            HasSubstr("\"norm.weight\" is I64 [2], and Float [2] in the model"),
            HasSubstr("\"norm.num_batches_tracked\" is F32 [], and Long [] in the model"),
            HasSubstr("missing are \"norm.bias\", \"norm.running_mean\", \"norm.running_var\""),
            HasSubstr("the model has no \"head.")));
  expect(net, before);
}

// promise: load_weights.h#LoadWeightsOptions
TEST_F(LoadWeights, PassesOverWhatIsMissingOrUnexpectedWhereItIsAskedTo) {
  Net net;
  const auto before = numbered(net);
  load_weights(net, written(before));
  const auto loaded = load_weights(
      net, written({{"first.bias", torch::full({2}, 40.)}, {"head.bias", torch::zeros({1})}}),
      {.strict = false});
  EXPECT_THAT(loaded.unexpected, ElementsAre("head.bias"));
  EXPECT_EQ(loaded.missing.size(), before.size() - 1);
  EXPECT_EQ(loaded.missing.front(), "first.weight");
  expect(net, {{"first.bias", torch::full({2}, 40.)}, {"first.weight", before.front().second}});
  // A shape is never passed over.
  EXPECT_THROW(load_weights(net, written({{"first.bias", torch::zeros({3})}}), {.strict = false}),
               InvalidArgument);
}

// promise: load_weights.h#LoadWeightsOptions
TEST_F(LoadWeights, RenamesAndLeavesOut) {
  Net net;
  const auto values = numbered(net);
  NamedTensors others{{"head.weight", torch::zeros({1})}};
  for (const auto& [name, tensor] : values) others.emplace_back("module." + name, tensor);
  const auto without_prefix = [](const std::string& name) {
    return name.starts_with("module.") ? name.substr(7) : std::string();
  };
  load_weights(net, written(others), {.rename = without_prefix});
  expect(net, values);
  EXPECT_THAT(text_of<InvalidArgument>([&] {
                load_weights(net, written(others), {.rename = [](const std::string& name) {
                               return name == "head.weight" ? "norm.bias" : name.substr(7);
                             }});
              }),
              HasSubstr("\"head.weight\" and \"module.norm.bias\" are both \"norm.bias\""));
}

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, ATensorOfSeveralNamesNeedsOneOfThem) {
  struct Twice : nn::Module {
    nn::Linear in{register_module("in", nn::Linear(3, 3))};
    Twice() { register_module("out", in); }
  } net;
  const auto weight = torch::full({3, 3}, 5.);
  const auto bias = torch::full({3}, 6.);
  load_weights(net, written({{"out.weight", weight}, {"in.bias", bias}}));
  expect(net, {{"in.weight", weight}, {"in.bias", bias}});
  const auto both = [&](const torch::Tensor& other) {
    return written({{"in.weight", weight}, {"out.weight", other}, {"out.bias", bias}});
  };
  load_weights(net, both(weight));
  EXPECT_THAT(text_of<InvalidArgument>([&] {
                load_weights(net, both(torch::zeros({3, 3})));
              }),
              HasSubstr("\"in.weight\" and \"out.weight\", which are one tensor in the model"));
  expect(net, {{"in.weight", weight}});
}

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, ATensorThatIsTiedByItsMemoryHasOneValue) {
  nn::Linear in(3, 3);
  nn::Linear out(3, 3);
  out->weight.set_data(in->weight);
  nn::Sequential net(in, out);
  const auto weight = torch::full({3, 3}, 5.);
  const auto bias = torch::full({3}, 6.);
  const auto file_of = [&](const torch::Tensor& first, const torch::Tensor& second) {
    return written({{"0.weight", first}, {"1.weight", second}, {"0.bias", bias}, {"1.bias", bias}});
  };
  load_weights(*net, file_of(weight, weight.to(torch::kFloat64)));
  EXPECT_TRUE(torch::equal(out->weight, weight));
  EXPECT_THAT(
      text_of<InvalidArgument>([&] {
        load_weights(*net, file_of(torch::zeros({3, 3}), torch::ones({3, 3})));
      }),
      HasSubstr("\"0.weight\" and \"1.weight\", which are one tensor in the model, differ"));
  load_weights(*net,
               written({{"1.weight", torch::zeros({3, 3})}, {"0.bias", bias}, {"1.bias", bias}}));
  EXPECT_TRUE(torch::equal(in->weight, torch::zeros({3, 3})));
}

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, WhatCannotBeWrittenInPlaceIsNamedBeforeAnythingChanges) {
  struct Odd : nn::Module {
    torch::Tensor plain{register_parameter("plain", torch::zeros({2}))};
    torch::Tensor wide{register_parameter("wide", torch::zeros({1, 3}).expand({2, 3}), false)};
    torch::Tensor sparse{register_buffer("sparse", torch::eye(2).to_sparse())};
    torch::Tensor all{register_buffer("all", torch::zeros({6}))};
    torch::Tensor some{register_buffer("some", all.slice(0, 2, 5))};
  } net;
  {
    const c10::InferenceMode inference;
    net.register_buffer("still", torch::zeros({2}));
  }
  const auto file = written({{"plain", torch::ones({2})},
                             {"wide", torch::ones({2, 3})},
                             {"sparse", torch::ones({2, 2})},
                             {"all", torch::ones({6})},
                             {"some", torch::ones({3})},
                             {"still", torch::ones({2})}});
  EXPECT_THAT(text_of<InvalidArgument>([&] { load_weights(net, file); }),
              AllOf(HasSubstr("\"wide\" of the model has several elements in one place"),
                    HasSubstr("\"sparse\" of the model is sparse"),
                    HasSubstr("\"still\" of the model is an inference tensor"),
                    HasSubstr("\"all\" and \"some\" of the model share some memory")));
  EXPECT_TRUE(torch::equal(net.plain, torch::zeros({2})));
}

// promise: load_weights.h#load_weights
TEST_F(LoadWeights, TakesWhatAnIndexLists) {
  Net net;
  const auto values = numbered(net);
  const auto middle = values.begin() + 3;
  NamedTensors second(middle, values.end());
  second.emplace_back("first.weight", torch::zeros({2, 3}));  // the other file's counts
  second.emplace_back("head.weight", torch::zeros({1}));
  written({values.begin(), middle}, "one.safetensors");
  written(second, "two.safetensors");
  const auto index = folder_.file("model.safetensors.index.json");
  const auto write_index = [&](const std::string& other) {
    std::ofstream file(index);
    file << R"({"metadata": {}, "weight_map": {)" << other;
    for (auto one = values.begin(); one != values.end(); ++one) {
      file << fmt::format(R"({}"{}": "{}.safetensors")", one == values.begin() ? "" : ", ",
                          one->first, one < middle ? "one" : "two");
    }
    file << "}}";
  };
  write_index("");
  load_weights(net, index);
  expect(net, values);
  write_index(R"("head.bias": "two.safetensors", )");
  EXPECT_THAT(text_of<Corrupt>([&] { load_weights(net, index); }),
              HasSubstr("two.safetensors has no tensor \"head.bias\""));
  for (const auto* const elsewhere : {"../two.safetensors", "/etc/passwd", "..", ""}) {
    write_index(fmt::format(R"("head.bias": "{}", )", elsewhere));
    EXPECT_THAT(text_of<Corrupt>([&] { load_weights(net, index); }),
                HasSubstr("the file of \"head.bias\" is none beside it"));
  }
  for (const auto* const odd : {"[1]", "{", R"({"weight_map": {}})", R"({"weight_map": [1]})"}) {
    std::ofstream(index) << odd;
    EXPECT_THAT(text_of<Corrupt>([&] { load_weights(net, index); }), HasSubstr("is no index"));
  }
  EXPECT_THROW(load_weights(net, folder_.file("none.safetensors")), IoError);
  EXPECT_THROW(load_weights(net, folder_.file("none.json")), IoError);
}

TEST_F(LoadWeights, BeforeOrInATrainerGivesTheSameRunOnAnyNumberOfWorkers) {
  const auto file = [&] {
    torch::manual_seed(5);
    Net net;
    NamedTensors all;
    for (const auto& item : net.named_parameters()) all.emplace_back(item.key(), item.value());
    for (const auto& item : net.named_buffers()) all.emplace_back(item.key(), item.value());
    return written(all);
  }();
  const auto trained = [&](const Job& job, bool inside) {
    torch::manual_seed(static_cast<std::uint64_t>(job.rank()) + (inside ? 7 : 9));
    Net net;
    if (!inside) load_weights(net, file);
    Trainer trainer(job, net, Adam{.lr = 0.1}, {.shards = 3});
    if (inside) trainer.edit([&] { load_weights(net, file); });
    for (int k = 0; k < 2; ++k) {
      trainer.step([&](Shard& shard) {
        const Batch batch(4, shard.seed());
        return shard.loss(net.norm(net.first(batch.x.slice(1, 0, 3))).square().mean());
      });
    }
    return trainer.state_sha256();
  };
  const auto alone = text_of_rank_0(1, [&](const Job& job) { return trained(job, false); });
  for (const int workers : {1, 2, 3}) {
    EXPECT_EQ(text_of_rank_0(workers, [&](const Job& job) { return trained(job, true); }), alone);
    EXPECT_EQ(text_of_rank_0(workers, [&](const Job& job) { return trained(job, false); }), alone);
  }
}

}  // namespace
}  // namespace tutti::test::load_weights_cases
