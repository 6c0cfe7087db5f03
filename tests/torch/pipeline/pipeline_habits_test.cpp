// What programs do by habit, cut into stages: the bytes of the unsplit run, whatever the schedule.

#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "support/shared_between_processes.h"
#include "torch/pipeline/chain.h"
#include "tutti/recompute.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A model, its layers, and a step's two ends.
struct Program {
  std::shared_ptr<torch::nn::Module> model;
  std::vector<PipelineLayer> layers;
  std::function<TensorList(Shard&)> inputs = [](Shard& shard) -> TensorList {
    return {samples_of(0, shard.index())};
  };
  std::function<std::string()> also = [] { return std::string(); };  ///< to be the same
};

using Make = std::function<Program()>;

std::string steps_of(const Job& job, const Make& make, const std::optional<Pipeline>& shape) {
  auto program = make();
  TrainerOptions options{.shards = 4, .seed = 3, .pipeline = shape, .audit_every = 0};
  if (shape) options.pipeline->layers = program.layers;
  Trainer trainer(job, *program.model, Adam{.lr = 0.1}, options);
  const auto loss = [](Shard& shard, const TensorList& y) {
    return shard.loss(torch::real(y.at(0)).square().mean());
  };
  for (int step = 0; step < 2; ++step) {
    if (shape) {
      trainer.step(program.inputs, loss);
      continue;
    }
    trainer.step([&](Shard& shard) {
      auto values = program.inputs(shard);
      for (const auto& layer : program.layers) values = layer(values);
      return loss(shard, values);
    });
  }
  return trainer.state_sha256() + program.also();
}

std::string run(int size, const Make& make, const std::optional<Pipeline>& shape) {
  return text_of_rank_0(size, [&](const Job& job) { return steps_of(job, make, shape); });
}

const std::vector<const char*> kAll = {"gpipe", "1f1b", "zb-h1"};

void expect_same_bytes(const Make& make, const std::vector<const char*>& kinds = kAll) {
  const auto plain = run(1, make, {});
  for (const auto* const kind : kinds) {
    for (const int stages : {2, 4}) {
      EXPECT_EQ(run(stages, make, Pipeline{.stages = stages, .schedule = kind}), plain)
          << kind << " of " << stages;
    }
  }
  EXPECT_EQ(run(1, make, Pipeline{.stages = 4, .workers = 1}), plain) << "all on one worker";
}

/// A chain with a buffer; `change` puts layers of its own in places.
Make chain_with(const std::function<void(Chain&, std::vector<PipelineLayer>&)>& change) {
  return [change] {
    auto chain = std::make_shared<Chain>();
    chain->register_buffer("scale", torch::full({5}, 2.0));
    auto layers = chain->layers();
    change(*chain, layers);
    return Program{.model = chain, .layers = std::move(layers)};
  };
}

torch::Tensor moved(const torch::Tensor& scale, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  return scale.mul_(0.9).add_(x.detach().abs().mean(0));
}

TEST(PipelineHabits, ABufferThatAShardChangesTakesPartInItsOwnGradient) {
  expect_same_bytes(chain_with([](Chain& chain, std::vector<PipelineLayer>& layers) {
    for (const std::size_t k : {0U, 1U}) {
      layers[k + 2] = [layer = layers[k + 2], k, scale = chain.buffers()[0]](const TensorList& x) {
        return layer({x[0] / (k == 0 ? moved(scale, x[0]) : scale)});
      };
    }
  }));
}

// promise: pipeline.h#Pipeline
TEST(PipelineHabits, LaterStagesReadTheBufferThatAnEarlierOneHasChanged) {
  expect_same_bytes(chain_with([](Chain& chain, std::vector<PipelineLayer>& layers) {
    layers[0] = [layer = layers[0], scale = chain.buffers()[0]](const TensorList& x) {
      return layer({x[0] / moved(scale, x[0])});
    };
    layers[3] = [layer = layers[3], scale = chain.buffers()[0]](const TensorList& x) {
      return layer({x[0] * scale.view({1, 5})});
    };
  }));
}

TEST(PipelineHabits, ASegmentThatRunsAgainReadsTheBufferOfItsOwnShard) {
  expect_same_bytes(chain_with([](Chain& chain, std::vector<PipelineLayer>& layers) {
    layers[2] = [layer = layers[2], scale = chain.buffers()[0]](const TensorList& x) {
      moved(scale, x[0]);
      return TensorList{recompute(
          {}, [&](const torch::Tensor& y) { return layer({torch::tanh(y / scale)})[0]; }, x[0])};
    };
  }));
}

// promise: pipeline.h#PipelineLayer
TEST(PipelineHabits, ConjugatesAndTheirGradientsTravelAsWhatTheyAre) {
  expect_same_bytes(chain_with([](Chain&, std::vector<PipelineLayer>& layers) {
    layers[1] = [layer = layers[1]](const TensorList& x) -> TensorList {
      const auto y = torch::complex(layer(x)[0], x[0]);
      return {y.conj(), at::_neg_view(torch::imag(y).clone())};
    };
    layers[2] = [](const TensorList& x) -> TensorList {
      return {x[0] * torch::complex(x[1], x[1]), x[1].clone()};
    };
    layers[3] = [layer = layers[3]](const TensorList& x) -> TensorList {
      return {layer({torch::imag(x[0] * x[0].conj() + x[0]) + x[1]})[0]};
    };
  }));
}

TEST(PipelineHabits, AHookOfATiedParameterIsCalledOnceWithTheWholeGradient) {
  expect_same_bytes(chain_with([](Chain& chain, std::vector<PipelineLayer>& layers) {
    chain.linear[0]->weight.register_hook(
        [](const torch::Tensor& gradient) { return gradient * 0.5; });
    layers[3] = layers[0];
  }));
}

// promise: pipeline.h#Pipeline
TEST(PipelineHabits, WhatBackwardDrawsIsDrawnAsInTheUnsplitRun) {
  // In zb-h1 halves draw apart.
  expect_same_bytes(chain_with([](Chain&, std::vector<PipelineLayer>& layers) {
                      for (auto& layer : layers) {
                        layer = [inner = layer](const TensorList& x) -> TensorList {
                          auto y = torch::dropout(inner(x)[0], 0.2, true);
                          y.register_hook([](const torch::Tensor& gradient) {
                            return gradient + torch::randn_like(gradient);
                          });
                          return {y};
                        };
                      }
                    }),
                    {"gpipe", "1f1b"});
}

// promise: trainer.h#step
TEST(PipelineHabits, TheFirstClosureMayFillItsMemoryAgain) {
  for (const bool is_blob : {false, true}) {
    expect_same_bytes([is_blob] {
      auto program = chain_with([](Chain&, std::vector<PipelineLayer>&) {})();
      program.inputs = [is_blob, memory = std::make_shared<std::vector<float>>(20),
                        tensor = torch::empty({2, 5})](Shard& shard) -> TensorList {
        const auto values = samples_of(0, shard.index());
        if (!is_blob) {
          const auto whole = tensor;
          return {whole.copy_(values)};
        }
        auto columns = torch::from_blob(memory->data(), {2, 5}, {10, 2}, torch::kFloat32);
        return {columns.copy_(values)};
      };
      return program;
    });
  }
}

TEST(PipelineHabits, ASparseTableMayBeReadByTwoStagesAndSparseTensorsTravel) {
  expect_same_bytes([] {
    auto program = chain_with([](Chain&, std::vector<PipelineLayer>&) {})();
    const auto table = program.model->register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 5).sparse(true)));
    const auto codes = torch::tensor({3, 4});
    program.layers[0] = [table, layer = program.layers[0]](const TensorList& x) -> TensorList {
      return {layer({x[0] + table->forward(x[1])})[0], x[1],
              torch::eye(2, torch::kFloat32).to_sparse()};
    };
    for (const std::size_t k : {1U, 2U}) {
      program.layers[k] = [layer = program.layers[k]](const TensorList& x) -> TensorList {
        return {layer({torch::mm(x[2], x[0])})[0], x[1], x[2]};
      };
    }
    program.layers[3] = [table, layer = program.layers[3]](const TensorList& x) -> TensorList {
      return layer({x[0] * table->forward(x[1])});
    };
    program.inputs = [codes](Shard& shard) -> TensorList {
      return {samples_of(0, shard.index()), codes + shard.index()};
    };
    return program;
  });
}

TEST(PipelineHabits, PiecesOfATensorThatDoNotOverlapMayBeChangedInPlaceBehindACut) {
  expect_same_bytes(chain_with([](Chain&, std::vector<PipelineLayer>& layers) {
    layers[1] = [layer = layers[1]](const TensorList& x) -> TensorList {
      const auto y = layer(x)[0];
      return {y.narrow(1, 0, 3).mul(2), y.narrow(1, 3, 2) * 1};
    };
    layers[2] = [layer = layers[2]](const TensorList& x) -> TensorList {
      const auto y = torch::cat(x, 1);
      return {y.narrow(1, 0, 3), y.narrow(1, 3, 2)};
    };
    layers[3] = [layer = layers[3]](const TensorList& x) -> TensorList {
      x[0].mul_(2);
      return layer({torch::cat(x, 1)});
    };
  }));
}

/// libtorch's group norm crashes where channels come last and the input's gradient is left out.
TEST(PipelineHabits, AGroupNormOfChannelsThatComeLastGoesWithHalves) {
  expect_same_bytes([] {
    torch::manual_seed(1);
    auto net = torch::nn::Sequential();
    std::vector<PipelineLayer> layers;
    for (int k = 0; k < 4; ++k) {
      auto convolution = torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1));
      auto norm = torch::nn::GroupNorm(2, 4);
      net->push_back(convolution);
      net->push_back(norm);
      layers.emplace_back([convolution, norm](const TensorList& x) mutable -> TensorList {
        return {norm->forward(convolution->forward(x[0]))};
      });
    }
    return Program{
        .model = net.ptr(), .layers = std::move(layers), .inputs = [](Shard& shard) -> TensorList {
          auto generator =
              at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(shard.index()));
          return {
              torch::randn({2, 4, 6, 6}, generator).contiguous(torch::MemoryFormat::ChannelsLast)};
        }};
  });
}

TEST(PipelineHabits, ALayerMayComputeInInferenceMode) {
  expect_same_bytes(chain_with([](Chain&, std::vector<PipelineLayer>& layers) {
    layers[0] = [](const TensorList& x) -> TensorList {
      const c10::InferenceMode inference;
      return {x[0] * 2};
    };
    layers[1] = [layer = layers[1]](const TensorList& x) { return layer({x[0].clone()}); };
  }));
}

TEST(PipelineHabits, ALayerMayKeepItsNormInEval) {
  expect_same_bytes(chain_with([](Chain& chain, std::vector<PipelineLayer>& layers) {
    auto norm = chain.register_module("norm", torch::nn::BatchNorm1d(5));
    layers[1] = [norm, layer = layers[1]](const TensorList& x) mutable {
      norm->eval();
      return layer({norm->forward(x[0])});
    };
  }));
}

struct Doubled : torch::autograd::Function<Doubled> {
  static inline std::atomic<int>* backwards = nullptr;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    ++*backwards;
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1] * 2, (gradients[0] * saved[0] * 2).sum(0)};
  }
};

/// Counted by all workers, in memory that they share.
struct Counts {
  std::atomic<int> segments, hooks, backwards;
};

TEST(PipelineHabits, FunctionsSegmentsAndHooksOfTheProgramRunAsOftenAsUnsplit) {
  const SharedBetweenProcesses<Counts> shared;
  expect_same_bytes([counts = shared.get()] {
    counts->segments = counts->hooks = counts->backwards = 0;  // ahead of a Trainer, which all make
    auto program = chain_with([=](Chain& chain, std::vector<PipelineLayer>& layers) {
      const auto own = chain.register_parameter("own", torch::ones({5}));
      layers[3] = [=, layer = layers[3], &chain](const TensorList& x) -> TensorList {
        const auto y = layer(x)[0];
        // In zb-h1 the one could wait, the other is read by what cannot.
        const auto factor = own * chain.linear[3]->weight[0];
        factor.register_hook([=](const torch::Tensor&) { ++counts->hooks; });
        const auto z = Doubled::apply(y * factor, chain.linear[3]->bias);
        Doubled::backwards = &counts->backwards;
        return {recompute(
            {},
            [=, &chain](const torch::Tensor& one) {
              ++counts->segments;
              return torch::tanh(one * chain.linear[3]->weight[1]);
            },
            z)};
      };
    })();
    program.also = [counts] {
      return fmt::format(" {} {} {}", counts->segments.load(), counts->hooks.load(),
                         counts->backwards.load());
    };
    return program;
  });
}

TEST(PipelineHabits, AModelThatIsInEvalOnOneStagesWorkerIsFound) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    Trainer trainer(job, chain, Sgd{}, {.shards = 2, .pipeline = pipeline_of(chain.layers(), 2)});
    if (job.rank() == 1) chain.eval();
    EXPECT_THAT(text_of([&] { step_of(trainer); }),
                HasSubstr("the model is in train() on rank 0, in eval() on rank 1"));
  });
}

TEST(PipelineHabits, WhatCannotTravelIsUnsupportedOnAllAndTheNextStepGoesOn) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    bool is_odd = true;
    auto layers = chain.layers();
    layers[1] = [&, layer = layers[1]](const TensorList& x) -> TensorList {
      const auto y = layer(x)[0];
      return {y, is_odd ? torch::eye(2).to_sparse_csr() : torch::eye(2)};
    };
    Trainer trainer(job, chain, Sgd{}, {.shards = 3, .pipeline = pipeline_of(layers, 2)});
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_THAT(text_of([&] { step_of(trainer); }),
                AllOf(HasSubstr("results of stage 0 in shard 0"), HasSubstr("SparseCsr")));
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
    is_odd = false;
    EXPECT_TRUE(step_of(trainer).applied);
  });
}

TEST(PipelineHabits, AChangeOfABufferThatAnEarlierStageHasGivenIsRefused) {
  for (const int workers : {1, 2}) {
    on_workers(workers, [&](const Job& job) {
      auto program = chain_with([](Chain& one, std::vector<PipelineLayer>& layers) {
        layers[1] = [layer = layers[1], scale = one.buffers()[0]](const TensorList& x) {
          return TensorList{layer(x)[0], scale};
        };
        layers[2] = [layer = layers[2]](const TensorList& x) {
          x[1].detach().mul_(0.5);
          return layer({x[0] * x[1]});
        };
      })();
      Pipeline shape{.layers = program.layers, .stages = 2, .workers = workers};
      Trainer trainer(job, *program.model, Sgd{}, {.shards = 2, .pipeline = shape});
      EXPECT_THAT(text_of([&] { step_of(trainer); }),
                  HasSubstr("changes in place a tensor that it was given, Float [5]"));
    });
  }
}

}  // namespace
}  // namespace tutti::test::pipeline_cases
