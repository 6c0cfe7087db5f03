// Complex parameters and tensors: what is done with one is what is done with its real numbers, on
// any number of workers. Each is beside a twin whose parameters are real, [..., 2], of which
// forward makes complex ones: autograd's own bridge between both.

#include <filesystem>
#include <map>

#include "run/files/safetensors_reader.h"
#include "support/running_command.h"
#include "torch/exact_cases.h"
#include "torch/model/real_numbers.h"
#include "torch/training.h"
#include "tutti/load_weights.h"
#include "tutti/tensors.h"

namespace tutti::test::complex_cases {
namespace {

using exact::draw;
using ::testing::AllOf;
using ::testing::HasSubstr;

torch::Tensor draw_complex(std::uint64_t seed, std::vector<std::int64_t> sizes) {
  sizes.push_back(2);
  return torch::view_as_complex(draw(seed, sizes));
}

/// Filters in Fourier space, as a neural operator has them: one of them transposed, one a scalar,
/// and real parameters beside. `is_twin`: all are real.
struct SpectralImpl : torch::nn::Module {
  SpectralImpl(bool is_twin, torch::ScalarType type) : is_twin_(is_twin) {
    filter = add("filter", draw_complex(1, {5, 9}), type);
    mix = add("mix", draw_complex(2, {9, 5}).t(), type);
    gain = add("gain", draw_complex(3, {}), type);
    bias = register_parameter("bias", draw(4, {9}).to(c10::toRealValueType(type)));
    here(*this);
  }
  torch::Tensor add(const std::string& name, const torch::Tensor& value, torch::ScalarType type) {
    const auto complex = value.to(type);  // keeps strides
    return register_parameter(name, is_twin_ ? torch::view_as_real(complex).detach() : complex);
  }
  torch::Tensor complex(const torch::Tensor& parameter) const {
    return is_twin_ ? torch::view_as_complex(parameter) : parameter;
  }
  torch::Tensor forward(const torch::Tensor& x) const {
    const auto spectrum = torch::fft_fft(x);
    auto y = spectrum.unsqueeze(1) * complex(filter) + complex(mix).conj() * complex(gain);
    y = torch::fft_ifft(0.1 * y * y + y);
    return torch::real(y) + torch::imag(y).square() + bias;
  }

  bool is_twin_;
  torch::Tensor filter, mix, gain, bias;
};
TORCH_MODULE(Spectral);

torch::Tensor loss_of(const Spectral& model, std::uint64_t seed) {
  const auto x = draw(seed, {4, 9}).to(model->bias.device(), model->bias.scalar_type());
  return model->forward(x).square().mean();
}

/// The bytes of all tensors, in the order of their elements.
std::string bytes_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> all;
  for (const auto& tensor : tensors) {
    all.push_back(as_reals(tensor.detach()).contiguous().flatten().to(torch::kFloat64));
  }
  const auto flat = torch::cat(all);
  std::string text;
  for (std::int64_t k = 0; k < flat.numel(); ++k)
    text += fmt::format("{} ", flat[k].item<double>());
  return text;
}

std::string digest_of(const std::vector<torch::Tensor>& tensors) {
  return fmt::format("{:016x}", std::hash<std::string>()(bytes_of(tensors)));
}

// promise: data_parallel#complex-parameters
TEST(Complex, GradientsOfADataParallelAreThoseOfTheRealNumbers) {
  for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
    for (const int workers : {1, 2, 3}) {
      const auto train = [&](bool is_twin) {
        return text_of_rank_0(workers, [&](const Job& job) {
          Spectral model(is_twin, type);
          DataParallel parallel(job, *model);
          std::vector<torch::Tensor> seen;
          for (std::uint64_t step = 0; step < 3; ++step) {
            model->zero_grad();
            const auto seed = 100 * step + static_cast<std::uint64_t>(job.rank());
            {
              auto scope = parallel.accumulate();
              for (const std::uint64_t k : {0, 50}) {
                scope.micro_batch(1, [&] { return loss_of(model, seed + k); });
              }
              scope.finish();
            }
            for (const auto& one : model->parameters()) seen.push_back(one.grad().clone());
            const torch::NoGradGuard no_grad;
            for (auto& one : model->parameters()) as_reals(one).sub_(as_reals(one.grad()) * 0.1);
          }
          EXPECT_EQ(model->filter.grad().scalar_type(), model->filter.scalar_type());
          EXPECT_GT(as_reals(model->filter.grad()).select(-1, 1).abs().sum().item<double>(), 0);
          for (const auto& one : model->parameters()) seen.push_back(one);
          return digest_of(seen);
        });
      };
      EXPECT_EQ(train(false), train(true)) << c10::toString(type) << ", workers " << workers;
    }
  }
}

// promise: data_parallel#complex-parameters
TEST(Complex, AStepOfADataParallelIsThatOfOneProcessWithTheWholeBatch) {
  on_workers(3, [&](const Job& job) {
    std::vector<torch::Tensor> alone;
    Spectral whole(false, torch::kComplexDouble);
    (loss_of(whole, 1) + loss_of(whole, 2) + loss_of(whole, 3)).div(3).backward();
    for (const auto& one : whole->parameters()) alone.push_back(one.grad().clone());
    Spectral model(false, torch::kComplexDouble);
    DataParallel parallel(job, *model);
    loss_of(model, static_cast<std::uint64_t>(job.rank()) + 1).backward();
    for (std::size_t p = 0; p < alone.size(); ++p) {
      EXPECT_TRUE(torch::allclose(model->parameters()[p].grad(), alone[p], 1e-12, 1e-14)) << p;
    }
  });
}

// promise: data_parallel#complex-parameters
TEST(Complex, TorchsOptimizersGetTheRealNumbers) {
  const auto train = [](bool is_twin) {
    return text_of_rank_0(2, [&](const Job& job) {
      Spectral model(is_twin, torch::kComplexFloat);
      DataParallel parallel(job, *model);
      std::vector<torch::Tensor> numbers;  // what the optimizer has, in the parameters' memory
      for (const auto& p : model->parameters()) {
        numbers.push_back(p.is_complex() ? torch::view_as_real(p.detach()) : p);
      }
      torch::optim::Adam optimizer(numbers, torch::optim::AdamOptions(0.01));
      for (std::uint64_t step = 0; step < 3; ++step) {
        model->zero_grad();
        loss_of(model, 10 * step + static_cast<std::uint64_t>(job.rank())).backward();
        for (std::size_t p = 0; p < numbers.size(); ++p) {  // after backward
          const auto& grad = model->parameters()[p].grad();
          numbers[p].mutable_grad() = grad.is_complex() ? torch::view_as_real(grad) : grad;
        }
        optimizer.step();
      }
      return digest_of(model->parameters());
    });
  };
  EXPECT_EQ(train(false), train(true));
}

struct Case {
  std::string name;
  Optimizer optimizer = Adam{.lr = 0.01};
  TrainerOptions options = {};
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string name :
       {"sgd", "adam", "adamw", "rmsprop", "adagrad", "plain_sgd", "amsgrad", "rms_prop", "lion"}) {
    if (name == "rmsprop" && test_device_profile()) continue;  // is tried out on the CPU
    all.push_back({name, exact::optimizer_of(name)});
  }
  all.push_back({.name = "clip by norm", .options = {.clip = {.norm = 0.01}}});
  all.push_back({.name = "clip by parameter norm", .options = {.clip = {.parameter_norm = 0.01}}});
  all.push_back({.name = "clip by value", .options = {.clip = {.value = 1e-3}}});
  all.push_back({.name = "loss scale", .options = {.loss_scale = {.start = 1024}}});
  all.push_back({.name = "averages", .options = {.ema_decay = 0.9}});
  all.push_back({.name = "owned", .options = {.placement = [](const std::string& name) {
                                    return name == "mix" ? std::optional<std::int64_t>(1)
                                                         : std::nullopt;
                                  }}});
  if (test_device_profile()) return all;  // what a Trainer refuses there
  all.push_back({.name = "local SGD", .options = {.averaging = local_sgd(2)}});
  all.push_back({.name = "DiLoCo", .options = {.averaging = diloco(2, {.warm_up = 0})}});
  all.push_back({.name = "per replica", .options = {.per_replica = [](const std::string& name) {
                                          return name != "bias";
                                        }}});
  for (const auto& codec : {half_codec(), int8_codec(), top_k_codec(0.1)}) {
    all.push_back({.name = std::string(codec->name()),
                   .options = {.compression = {.codec = codec, .fusion = 64}}});
  }
  return all;
}

/// What a Trainer has after four steps, with a stop after the second where there is a folder.
std::string trained(const Job& job, const Case& one, bool is_twin, torch::ScalarType type,
                    const std::string& folder = "") {
  Spectral model(is_twin, type);
  auto options = one.options;
  options.shards = 5;
  options.seed = 3;
  options.logical_workers = 5;
  std::vector<torch::Tensor> seen;
  const auto train = [&](std::int64_t until) {
    Trainer trainer(job, *model, one.optimizer, options);
    if (!folder.empty()) trainer.load(folder);
    while (trainer.steps() < until) {
      const auto result =
          trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard.seed())); });
      EXPECT_TRUE(result.applied) << one.name << ": " << result.dropped_because;
    }
    if (!folder.empty()) trainer.save(folder);
  };
  if (!folder.empty()) train(2);
  train(4);
  for (const auto& parameter : model->parameters()) seen.push_back(parameter);
  return digest_of(seen);
}

// promise: data_parallel#complex-parameters
TEST(Complex, ATrainerDoesWithThemWhatItDoesWithTheRealNumbers) {
  for (const auto& one : cases()) {
    const auto twin = text_of_rank_0(
        1, [&](const Job& job) { return trained(job, one, true, torch::kComplexFloat); });
    for (const int workers : {1, 2, 3}) {
      EXPECT_EQ(text_of_rank_0(
                    workers,
                    [&](const Job& job) { return trained(job, one, false, torch::kComplexFloat); }),
                twin)
          << one.name << ", workers " << workers;
    }
  }
}

// promise: data_parallel#complex-parameters
TEST(Complex, GradientsOfATrainerMayBeHandedInAndLookedAt) {
  for (const bool is_per_replica : {false, true}) {
    if (is_per_replica && test_device_profile()) continue;
    const auto looked_at = [&](const Job& job, bool is_twin, bool is_handed_in) {
      Spectral model(is_twin, torch::kComplexFloat);
      TrainerOptions options{.shards = 3, .seed = 3, .logical_workers = 3};
      if (is_per_replica)
        options.per_replica = [](const std::string& name) { return name != "gain"; };
      Trainer trainer(job, *model, Adam{.lr = 0.01}, options);
      trainer.accumulate([&](Shard& shard) {
        const auto loss = loss_of(model, shard.seed());
        if (!is_handed_in) return shard.loss(loss);
        return shard.gradients(torch::autograd::grad({loss}, model->parameters()));
      });
      std::vector<torch::Tensor> seen = {torch::tensor(trainer.gradient_norm(), torch::kFloat64)};
      for (const auto& item : model->named_parameters()) {
        seen.push_back(trainer.gradient(item.key()));
        EXPECT_EQ(seen.back().scalar_type(), item.value().scalar_type());
      }
      trainer.apply();
      for (const auto& one : model->parameters()) seen.push_back(one);
      for (auto& one : seen) one = one.cpu();
      return bytes_of(seen);
    };
    const auto twin =
        text_of_rank_0(1, [&](const Job& job) { return looked_at(job, true, false); });
    for (const int workers : {1, 2, 3}) {
      for (const bool is_handed_in : {false, true}) {
        EXPECT_EQ(text_of_rank_0(
                      workers, [&](const Job& job) { return looked_at(job, false, is_handed_in); }),
                  twin)
            << workers << " workers, " << is_handed_in;
      }
    }
  }
}

// promise: data_parallel#complex-parameters
TEST(Complex, GradientsSetByHandMayHaveTheConjugateBit) {
  on_workers(2, [](const Job& job) {
    Spectral model(false, torch::kComplexFloat);
    DataParallel parallel(job, *model);
    const auto value = here(draw_complex(static_cast<std::uint64_t>(job.rank()) + 11, {9, 5}).t());
    model->mix.mutable_grad() = value.conj().resolve_conj();
    parallel.synchronize();
    const auto plain = model->mix.grad().clone();
    model->zero_grad();
    model->mix.mutable_grad() = value.conj();
    EXPECT_TRUE(model->mix.grad().is_conj());
    parallel.synchronize();
    EXPECT_TRUE(torch::equal(model->mix.grad(), plain));
  });
}

// promise: data_parallel#complex-parameters
TEST(Complex, ALossScaleIsTakenOutOfBothParts) {
  on_workers(2, [](const Job& job) {
    std::vector<torch::Tensor> plain;
    for (const double factor : {1, 1024}) {
      Spectral model(false, torch::kComplexFloat);
      DataParallel parallel(job, *model);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      LossScaler scaler(parallel, {.start = factor});
      scaler.scale(loss_of(model, static_cast<std::uint64_t>(job.rank()))).backward();
      scaler.unscale(optimizer);
      std::vector<torch::Tensor> gradients;
      for (const auto& one : model->parameters()) gradients.push_back(one.grad().clone());
      if (factor == 1) plain = gradients;
      EXPECT_EQ(bytes_of(gradients), bytes_of(plain));
      torch::view_as_real(model->mix.mutable_grad())[0][0][1] =
          std::numeric_limits<double>::infinity();
      LossScaler other(parallel, {.start = factor});
      EXPECT_FALSE(other.step(optimizer));
    }
  });
}

// promise: data_parallel#complex-parameters
TEST(Complex, CheckpointsResumeOnAnotherNumberOfWorkers) {
  for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
    for (const char* name : {"adam", "averages", "per replica", "local SGD"}) {
      const auto all = cases();
      const auto found = std::ranges::find(all, name, &Case::name);
      if (found == all.end()) continue;
      const auto one = *found;
      const TemporaryFolder folder;
      const auto run = folder.file("run");
      const auto straight =
          text_of_rank_0(1, [&](const Job& job) { return trained(job, one, false, type); });
      EXPECT_EQ(
          text_of_rank_0(2, [&](const Job& job) { return trained(job, one, false, type, run); }),
          straight)
          << name;
      std::filesystem::remove_all(run + "/step-00000004");
      EXPECT_EQ(text_of_rank_0(3,
                               [&](const Job& job) {
                                 Spectral model(false, type);
                                 return trained(job, one, false, type, run);
                               }),
                straight)
          << name;
    }
  }
}

// promise: checkpoints#checkpoints
TEST(Complex, FilesHaveComplexTensorsWhereTheFormatKnowsThem) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
      Spectral model(false, type);
      const auto run = folder.file(c10::toString(type));
      {
        Trainer trainer(job, *model, Adam{.lr = 0.01}, {.shards = 2});
        trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard.seed())); });
        trainer.save(run);
      }
      if (job.rank() != 0) continue;
      for (const char* file : {"parameters", "optimizer"}) {
        const SafetensorsFile stored(host_files(), run + "/step-00000001/" + file + ".safetensors");
        for (const auto& entry : stored.tensors()) {
          if (!entry.name.starts_with("mix")) continue;
          const bool is_known = type == torch::kComplexFloat;
          EXPECT_EQ(entry.type, is_known ? StoredType::C64 : StoredType::F64) << entry.name;
          EXPECT_EQ(entry.shape, is_known ? std::vector<std::int64_t>({5, 9})
                                          : std::vector<std::int64_t>({5, 9, 2}));
        }
      }
      if (type != torch::kComplexFloat) continue;
      Spectral other(false, type);
      const torch::NoGradGuard no_grad;
      for (auto& one : other->parameters()) one.zero_();
      load_weights(*other, run + "/step-00000001/parameters.safetensors");
      EXPECT_EQ(bytes_of(other->parameters()), bytes_of(model->parameters()));
    }
  });
}

// promise: checkpoints#checkpoints
TEST(Complex, ExportedModelsAreReadByTorch) {
  const TemporaryFolder folder;
  const auto run = folder.file("run");
  const auto bytes = text_of_rank_0(2, [&](const Job& job) {
    Spectral model(false, torch::kComplexFloat);
    Trainer trainer(job, *model, Adam{.lr = 0.01}, {.shards = 2});
    trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard.seed())); });
    trainer.save(run);
    return digest_of(model->parameters());
  });
  const auto file = folder.file("model.pt");
  const auto done = run_command({"export", "--torch", run, file});
  ASSERT_EQ(done.status, 0) << done.err;
  Spectral read(false, torch::kComplexFloat);
  torch::load(read, file);
  EXPECT_EQ(digest_of(read->parameters()), bytes);
}

// promise: data_parallel#complex-parameters
TEST(Complex, ARealNumberOnAnotherWorkerIsADifference) {
  on_workers(2, [](const Job& job) {
    const auto plain = torch::zeros({3, 2});
    const auto value = job.rank() == 0 ? plain : torch::view_as_complex(plain);
    const auto parameter = value.detach().clone().requires_grad_();
    EXPECT_THAT(text_of<Mismatch>([&] {
                  DataParallel parallel(Group(job), {{"p", parameter}});
                }),
                HasSubstr("complex"));
    const Group group(job);
    auto tensor = value.clone();
    EXPECT_THROW(all_reduce(group, tensor, Reduction::sum), Mismatch);
  });
}

// promise: data_parallel#complex-parameters
TEST(Complex, HalfPrecisionAndRowsOfThemAreRefused) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const auto half = torch::zeros({3}, torch::kComplexHalf).requires_grad_();
    EXPECT_THAT(text_of<Unsupported>([&] {
                  DataParallel parallel(group, {{"half", half}});
                }),
                AllOf(HasSubstr("\"half\""), HasSubstr("ComplexHalf")));
    const auto rows = torch::zeros({3, 2}, torch::kComplexFloat).requires_grad_();
    EXPECT_THAT(text_of<Unsupported>([&] {
                  DataParallel parallel(group, {{"rows", rows}},
                                        {.row_sparse = [](const std::string&) { return true; }});
                }),
                HasSubstr("row-sparse \"rows\" is of complex numbers"));
  });
}

}  // namespace
}  // namespace tutti::test::complex_cases
