// The audit of a Trainer: what makes a shard depend on its worker is found in the first step, and
// what the audit computes decides no bit.

#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "support/running_command.h"
#include "torch/exact_cases.h"
#include "torch/training.h"

namespace tutti::test::audit_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 70), torch::nn::Dropout(0.4),
                               torch::nn::Linear(70, 3), torch::nn::BatchNorm1d(3));
}
torch::Tensor loss_of(torch::nn::Sequential& model) {
  return model->forward(torch::randn({4, 6})).square().mean();
}

using Make = std::function<Trainer::Compute(const Job&, torch::nn::Sequential&)>;

/// What the Mismatch of the first step says, which is the same on all workers. Nothing has changed.
std::string found(int workers, const Make& make, TrainerOptions options = {}) {
  options.shards = 5;
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    const Group group(job, "texts");
    Trainer trainer(job, *model, Adam{.lr = 1e-2}, options);
    const auto compute = make(job, model);
    const auto before = trainer.state_sha256();
    const auto text = text_of<Mismatch>([&] { trainer.step(compute); });
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_EQ(trainer.steps(), 0);
    EXPECT_EQ(text_of<Mismatch>([&] { trainer.step(compute); }), text) << "not for good";
    std::string first = text;
    first.resize(2000);
    auto mine = first;
    group.broadcast({first.data(), 2000, DType::uint8}, 0);
    EXPECT_EQ(mine, first);
    return text;
  });
}

constexpr std::string_view kByTwo =
    "step 1 of \"model\": the audit (audit_every) found that shard 0, computed by rank 0 and once "
    "more by rank 1, is not the same: it differs in the ";

// promise: trainer_options.h#audit_every
TEST(Audit, AModuleThatIsInEvalOnOneWorkerIsFoundInTheFirstStep) {
  // Of the Trainer's own modules the modes are compared in every step; this one is none of them.
  const auto in_eval = [](const Job& job, torch::nn::Sequential& model) -> Trainer::Compute {
    torch::nn::Dropout noise(0.5);
    noise->train(job.rank() != 1);
    return [&model, noise](Shard& shard) mutable {
      return shard.loss(loss_of(model) * noise->forward(torch::ones({1001})).mean());
    };
  };
  for (const int workers : {2, 3}) {
    EXPECT_THAT(found(workers, in_eval),
                AllOf(HasSubstr(std::string(kByTwo) + "gradient of \"0.weight\" and "),
                      HasSubstr(" other things (loss "), HasSubstr("a module in eval()")));
  }
}

TEST(Audit, DataOfAnUnseededProgramAreFoundInTheFirstStep) {
  for (const int workers : {2, 3}) {
    const auto text = found(workers, [](const Job& job, torch::nn::Sequential& model) {
      torch::manual_seed(100 + static_cast<std::uint64_t>(job.rank()));  // as at random
      return [&model, x = torch::randn({5, 4, 6}), y = torch::randn({5, 4, 3})](Shard& shard) {
        return shard.loss(torch::mse_loss(model->forward(x[shard.index()]), y[shard.index()]));
      };
    });
    EXPECT_THAT(text, AllOf(HasSubstr(kByTwo), HasSubstr("a generator without a seed")));
  }
}

TEST(Audit, NoiseFromAGeneratorThatHasNoSeedOrThatShardsShareIsFoundInTheFirstStep) {
  for (const int workers : {1, 2, 3}) {
    for (const bool seeded : {false, true}) {
      const auto text = found(workers, [&](const Job&, torch::nn::Sequential& model) {
        const auto seed = seeded ? 5 : c10::detail::getNonDeterministicRandom();
        return [&model, generator = at::make_generator<at::CPUGeneratorImpl>(seed)](Shard& shard) {
          return shard.loss(loss_of(model) * torch::randn({}, generator));
        };
      });
      EXPECT_THAT(text, workers == 1
                            ? HasSubstr("shard 0, computed twice by rank 0, is not the same")
                            : HasSubstr(std::string(kByTwo)));
    }
  }
}

// promise: trainer.h#Trainer
TEST(Audit, ARankOrAVariableThatAnEarlierShardChangedIsFoundInTheFirstStep) {
  for (const int workers : {1, 2, 3}) {
    if (workers > 1) {
      EXPECT_THAT(found(workers,
                        [](const Job& job, torch::nn::Sequential& model) -> Trainer::Compute {
                          return [&](Shard& shard) {
                            return shard.loss(loss_of(model) * (1.0 + job.rank()));
                          };
                        }),
                  HasSubstr(kByTwo));
    }
    EXPECT_THAT(found(workers,
                      [](const Job&, torch::nn::Sequential& model) {
                        return [&model, calls = 0](Shard& shard) mutable {
                          return shard.loss(loss_of(model) * (1.0 + calls++));
                        };
                      }),
                HasSubstr("it differs in the gradient of \"0.weight\" and"));
  }
}

TEST(Audit, WhatDiffersAloneIsNamed) {
  const auto named = [](const std::string& what, const auto& answer, TrainerOptions options = {}) {
    EXPECT_THAT(found(
                    2,
                    [&](const Job& job, torch::nn::Sequential& model) -> Trainer::Compute {
                      return [&](Shard& shard) { return answer(shard, model, job.rank() == 1); };
                    },
                    options),
                HasSubstr(std::string(kByTwo) + what + ". A shard"));
  };
  named("buffer \"3.running_mean\"", [](Shard& shard, torch::nn::Sequential& model, bool odd) {
    if (odd) model->named_buffers()["3.running_mean"][2] += 1;  // train() computes without it
    return shard.loss(loss_of(model));
  });
  named("metric \"rank\"", [](Shard& shard, torch::nn::Sequential& model, bool odd) {
    shard.metrics().max("rank", odd ? 1 : 0);
    return shard.loss(loss_of(model));
  });
  named("metric \"odd\"", [](Shard& shard, torch::nn::Sequential& model, bool odd) {
    if (odd) shard.metrics().gather("odd", 1);
    return shard.loss(loss_of(model));
  });
  named("state \"h/shard-0\"", [](Shard& shard, torch::nn::Sequential& model, bool odd) {
    shard.state("h", [] { return torch::zeros({2}); }).fill_(odd ? 1 : 2);
    return shard.loss(loss_of(model));
  });
  const auto handed_in = [](Shard& shard, torch::nn::Sequential& model, bool odd, double weight) {
    std::vector<torch::Tensor> gradients(model->parameters().size());
    gradients[0] = torch::ones_like(model->parameters()[0]);
    if (odd) gradients[1] = torch::zeros_like(model->parameters()[1]);
    return shard.gradients(gradients, weight);
  };
  named("gradient of \"0.bias\"", [&](Shard& shard, torch::nn::Sequential& model, bool odd) {
    return handed_in(shard, model, odd, 1);
  });
  named("weight", [&](Shard& shard, torch::nn::Sequential& model, bool odd) {
    return handed_in(shard, model, false, odd ? 2 : 1);
  });
  // Of a row-sparse parameter where a row lies, and what is in it.
  for (const bool values : {false, true}) {
    named("gradient of \"0.weight\"",
          [&](Shard& shard, torch::nn::Sequential& model, bool odd) {
            std::vector<torch::Tensor> gradients(model->parameters().size());
            const auto row = torch::full({1, 1}, odd && !values ? 3 : 2, torch::kInt64);
            gradients[0] = torch::sparse_coo_tensor(
                row, torch::full({1, 6}, odd && values ? 2. : 1.), {70, 6});
            return shard.gradients(gradients);
          },
          {.row_sparse = [](const std::string& name) { return name == "0.weight"; }});
  }
}

TEST(Audit, OneFlippedBitOfAWorkersGradientIsFoundByTheNextAudit) {
  for (const int workers : {1, 2, 3}) {
    for (const std::int64_t every : {0, 3}) {
      on_workers(workers, [&](const Job& job) {
        torch::manual_seed(1);
        auto model = net();
        Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 7, .audit_every = every});
        std::int64_t calls = 0;
        const auto flip = [&](const torch::Tensor& gradient) {
          // Of the last worker, from step 4 on; where it is alone, in every second shard.
          if (trainer.steps() < 3 || job.rank() != workers - 1) return gradient;
          if (workers == 1 && ++calls % 2 == 0) return gradient;
          auto flipped = gradient.clone();
          auto* const bits = reinterpret_cast<std::uint32_t*>(flipped.data_ptr<float>());
          bits[2] ^= 1;
          return flipped;
        };
        model[2]->as<torch::nn::Linear>()->bias.register_hook(flip);
        const auto step = [&] {
          trainer.step([&](Shard& shard) { return shard.loss(loss_of(model)); });
        };
        while (trainer.steps() < 5) step();
        const auto text = text_of<Mismatch>(step);
        if (every == 0) {
          EXPECT_EQ(text, "");
        } else {
          EXPECT_THAT(text, AllOf(HasSubstr("step 6 of \"model\": "),
                                  HasSubstr("it differs in the gradient of \"2.bias\". A shard"),
                                  HasSubstr("rank " + std::to_string(workers - 1))));
        }
        EXPECT_EQ(trainer.steps(), every == 0 ? 6 : 5);
      });
    }
  }
}

// promise: trainer.h#is_audit, trainer_options.h#audit_every
TEST(Audit, DecidesNoBit) {
  for (const auto& one : std::vector<exact::Case>{{"mlp", "adam", "loss scale", 5},
                                                  {"convolution", "sgd", "halves", 5},
                                                  {"tables", "adagrad", "norm clip", 5},
                                                  {"tied", "rmsprop", "plain", 5},
                                                  {"branches", "adamw", "topk codec", 5},
                                                  {"half", "sgd", "half codec", 5},
                                                  {"convolution", "adam", "local", 5},
                                                  {"lstm", "adam", "partial", 5}}) {
    auto other = one;
    other.audit_every = 0;
    const auto without = exact::train(1, other);
    EXPECT_EQ(without.size(), 64U * exact::kSteps);
    for (const std::int64_t every : {1, 3}) {
      for (const int workers : {1, 2, 3}) {
        other.audit_every = every;
        EXPECT_EQ(exact::train(workers, other), without)
            << exact::text_of(one) << ", every " << every << ", " << workers << " workers";
      }
    }
  }
}

class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    return {torch::randn({6}, at::make_generator<at::CPUGeneratorImpl>(index)),
            torch::tensor(static_cast<std::int64_t>(index))};
  }
  torch::optional<std::size_t> size() const override { return 50; }
};

/// What a run says of itself: its state, metrics, position and traffic after each step, where
/// shards carry a state, have no samples, or gradients that are not finite.
std::string everything(int workers, std::int64_t every, std::int64_t prefetch,
                       const std::string& log) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    Trainer trainer(job, *model, Adam{.lr = 1e-2},
                    {.shards = 5, .seed = 2, .log = log, .hash_every = 1, .audit_every = every});
    auto data = Samples().map(torch::data::transforms::Stack<>());
    ShardLoader loader(std::move(data), 4, {.prefetch = prefetch, .threads = 2});
    std::ostringstream text;
    while (trainer.steps() < 8) {
      const auto result = trainer.step([&](Shard& shard) {
        auto carried = shard.state("carried", [] { return torch::randn({3}); });
        const auto batch = loader.next(shard);
        if (!batch) return shard.nothing();
        EXPECT_TRUE(torch::equal(batch->target, torch::tensor(shard.indices(50, 4))));
        const auto out = model->forward(batch->data) + carried.clone();
        carried.copy_(out.detach()[0]);
        shard.metrics().gather("targets", static_cast<double>(batch->target.sum().item<float>()));
        const bool bad = shard.step() == 4 && shard.index() == 1;
        return shard.loss(out.square().mean() * (bad ? INFINITY : 1.0), batch->data.size(0));
      });
      EXPECT_EQ(result.applied, result.step != 4);
      text << trainer.state_sha256() << ' ' << result.weight << ' ' << result.shards << ' '
           << result.report.nodes_held << ' ' << result.report.zero_copy_gradients << ' '
           << result.report.max_sent_bytes << ' ' << trainer.traffic().table() << '\n';
    }
    return text.str();
  });
}

std::string bytes_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// promise: trainer.h#is_audit
TEST(Audit, StatesOfShardsLoadersDroppedStepsTrafficAndTheLogAreAsWithout) {
  const TemporaryFolder folder;
  for (const int workers : {1, 2, 3}) {
    const auto log = [&](std::int64_t every, std::int64_t prefetch) {
      return folder.file(std::to_string(workers) + std::to_string(every) + "-" +
                         std::to_string(prefetch));
    };
    const auto without = everything(workers, 0, 3, log(0, 3));
    for (const std::int64_t every : {1, 3}) {
      for (const std::int64_t prefetch : {0, 3}) {
        EXPECT_EQ(everything(workers, every, prefetch, log(every, prefetch)), without) << workers;
        EXPECT_EQ(bytes_of(log(every, prefetch)), bytes_of(log(0, 3)));
      }
    }
    EXPECT_THAT(bytes_of(log(0, 3)), HasSubstr("\"step\""));
  }
}

TEST(Audit, LeavesGradientsThatAreBornInPlaceAlone) {
  const auto run = [](int workers, std::int64_t every) {
    return text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(1);
      torch::nn::Sequential model(torch::nn::Linear(150, 150), torch::nn::Linear(150, 150));
      Trainer trainer(job, *model, Adam{}, {.shards = 6, .audit_every = every});
      std::string text;
      while (trainer.steps() < 6) {
        const auto result = trainer.step([&](Shard& shard) {
          return shard.loss(model->forward(torch::randn({4, 150})).square().mean());
        });
        text +=
            trainer.state_sha256() + " " + std::to_string(result.report.zero_copy_gradients) + "\n";
      }
      return text;
    });
  };
  for (const int workers : {1, 2, 3}) {
    const auto without = run(workers, 0);
    EXPECT_THAT(without, HasSubstr(workers == 1 ? " 6\n" : workers == 2 ? " 4\n" : " 2\n"));
    EXPECT_EQ(run(workers, 1), without);
  }
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(Audit, AClosureThatThrowsInItAloneIsReportedSoAndTheStepIsRepeated) {
  const auto run = [](int workers, bool throws) {
    return text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = net();
      Trainer trainer(job, *model, Adam{}, {.shards = 5});
      const auto step = [&] {
        trainer.step([&](Shard& shard) {
          if (shard.is_audit() && throws) throw std::domain_error("no second time");
          return shard.loss(loss_of(model));
        });
      };
      if (throws) {
        const auto auditor = workers == 1 ? 0 : 1;
        const auto text = "shard 0, which rank 0 has and rank " + std::to_string(auditor) +
                          " computed once more for the audit: no second time";
        try {
          step();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const InvalidArgument& error) {
          EXPECT_EQ(job.rank(), auditor);
          EXPECT_EQ(error.what(), text);
          EXPECT_THROW(std::rethrow_if_nested(error), std::domain_error);
        } catch (const PeerFailed& error) {
          EXPECT_NE(job.rank(), auditor);
          EXPECT_THAT(error.what(), HasSubstr("step 1 of \"model\": rank 1 failed: " + text));
        }
        EXPECT_EQ(trainer.steps(), 0);
        throws = false;
      }
      for (int k = 0; k < 3; ++k) step();
      return trainer.state_sha256();
    });
  };
  const auto without = run(1, false);
  for (const int workers : {1, 2, 3}) EXPECT_EQ(run(workers, true), without);
}

/// Where it throws both times, the failure is its owner's too.
TEST(Audit, AClosureThatThrowsWhereTheAuditIsWaitedForDropsTheStepOnAll) {
  on_workers(3, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 1});
    bool throws = true;
    bool throws_again = false;
    const auto step = [&] {
      trainer.step([&](Shard& shard) {
        if (shard.is_audit() ? throws_again : throws) throw std::domain_error("no");
        return shard.loss(loss_of(model));
      });
    };
    // Only rank 0 has a shard; rank 1 computes it once more.
    for (const bool again : {false, true}) {
      throws_again = again;
      if (job.rank() == 0) {
        EXPECT_EQ(text_of<std::domain_error>(step), "no");
      } else {
        EXPECT_THAT(text_of<PeerFailed>(step), HasSubstr("rank 0 failed: no"));
      }
    }
    throws = throws_again = false;
    step();
    EXPECT_EQ(trainer.steps(), 1);
  });
}

TEST(Audit, AStateTooLargeToBeHandedOverIsAuditedByItsOwnWorker) {
  on_workers(2, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .audit_every = 1});
    std::vector<std::int64_t> audited;
    while (trainer.steps() < 3) {
      trainer.step([&](Shard& shard) {
        if (shard.is_audit()) audited.push_back(shard.index());
        const auto size = shard.index() == 0 ? (17 << 20) : 10;
        auto large = shard.state("large", [&] { return torch::zeros({size}); });
        large += 1;
        EXPECT_EQ(large[size - 1].item<float>(), shard.step());
        return shard.loss(loss_of(model) * large[0].item<float>());
      });
    }
    // Step 1: shard 1 by rank 0. Step 2: shard 0, which has a state by then. Step 3: shard 1.
    EXPECT_EQ(audited,
              job.rank() == 0 ? (std::vector<std::int64_t>{1, 0, 1}) : std::vector<std::int64_t>{});
  });
}

TEST(Audit, AShardWithoutDataIsAuditedToo) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      auto model = net();
      Trainer trainer(job, *model, Adam{}, {.shards = 4, .audit_every = 1});
      while (trainer.steps() < 8) {
        trainer.step([&](Shard& shard) {
          if ((shard.index() + shard.step()) % 3 == 0) return shard.nothing();
          return shard.loss(loss_of(model), (shard.index() + shard.step()) % 3 == 1 ? 0 : 2);
        });
      }
    });
  }
  EXPECT_THAT(found(2,
                    [](const Job& job, torch::nn::Sequential& model) -> Trainer::Compute {
                      return [&](Shard& shard) {
                        if (job.rank() == 1) return shard.nothing();
                        return shard.loss(loss_of(model));
                      };
                    }),
              AllOf(HasSubstr(kByTwo), HasSubstr("gradient of \"0.weight\"")));
}

// promise: trainer_options.h#audit_every
TEST(Audit, IsDueInTheFirstStepAlsoAfterALoadAndInEveryNth) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    const auto audited = [&](Trainer& trainer, torch::nn::Sequential& model, std::int64_t until) {
      std::string steps;
      while (trainer.steps() < until) {
        std::int64_t count = 0;
        trainer.step([&](Shard& shard) {
          count += shard.is_audit();
          return shard.loss(loss_of(model));
        });
        trainer.group().all_reduce({&count, 1, DType::int64}, Reduction::sum);
        EXPECT_LE(count, 1);
        if (count == 1) steps += " " + std::to_string(trainer.steps());
      }
      return steps;
    };
    auto model = net();
    Trainer trainer(job, *model, Adam{}, {.shards = 3, .audit_every = 4});
    EXPECT_EQ(audited(trainer, model, 6), " 1 4");
    trainer.save(folder.file("run"));
    EXPECT_EQ(audited(trainer, model, 9), " 8");
    trainer.load(folder.file("run"));
    EXPECT_EQ(audited(trainer, model, 9), " 7 8");
    auto other = net();
    // How often is no fact that a run which goes on has to share.
    Trainer rarely(job, *other, Adam{}, {.shards = 3});
    rarely.load(folder.file("run"));
    EXPECT_EQ(audited(rarely, other, 101), " 7 100");
    auto third = net();
    Trainer never(job, *third, Adam{}, {.shards = 3, .audit_every = 0});
    EXPECT_EQ(audited(never, third, 101), "");
  });
}

// promise: trainer_options.h#audit_every
TEST(Audit, HowOftenIsCheckedAndTheSameOnAllWorkers) {
  on_workers(2, [](const Job& job) {
    auto model = net();
    EXPECT_EQ(text_of<InvalidArgument>([&] { Trainer(job, *model, Adam{}, {.audit_every = -1}); }),
              "audit_every must not be negative");
    EXPECT_THAT(
        text_of<Mismatch>([&] { Trainer(job, *model, Adam{}, {.audit_every = job.rank()}); }),
        HasSubstr("audit_every"));
  });
}

}  // namespace
}  // namespace tutti::test::audit_cases
