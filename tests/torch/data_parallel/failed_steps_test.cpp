// Which step fail() gives up: the one whose failure its handler has, or the next one.

#include <exception>

#include "torch/training.h"

namespace tutti::test::failed_steps_cases {
namespace {

using ::testing::HasSubstr;

/// A model whose gradient tells the step that each worker is in: it is w · step, w being 1.
struct Counting {
  explicit Counting(const Job& job) : parallel(job, *model) {}
  torch::Tensor loss(int step) const { return (model->weight * step).sum(); }
  double gradient() const { return model->weight.grad().item<double>(); }
  torch::nn::Linear model{torch::nn::LinearOptions(1, 1).bias(false)};
  DataParallel parallel;
};

/// How the program of a worker comes to know that a step has failed before the backward.
enum class Style {
  by_value,            ///< a result that says so: no exception is about
  by_exception,        ///< an exception of its own, whose handler reports it
  by_same_text,        ///< the same, of the text that an earlier one had
  reports_everything,  ///< one handler that reports whatever it gets
  after_the_handler,   ///< the same, once the handler has ended
};

/// Steps that some worker gives up follow each other, by another worker each; the gradients of all
/// others are those of the step.
void train(const Job& job, Style style) {
  Counting net(job);
  constexpr int kSteps = 12;
  for (int step = 1; step <= kSteps; ++step) {
    // Pairs of neighbouring steps, then three in succession by the same worker.
    const int bad = step == 2                 ? 0
                    : step == 3 || step == 5  ? 1
                    : step == 6               ? 0
                    : step >= 8 && step <= 10 ? job.size() - 1
                                              : -1;
    const bool is_bad = bad >= 0 && bad < job.size();
    const auto go = [&] {
      net.model->zero_grad();
      if (bad == job.rank() && step != 9) throw std::runtime_error("a bad batch");
      // Made first, its backward comes last: once the parameter was reached.
      const auto one = torch::zeros({1}).requires_grad_().exp();
      if (bad == job.rank()) {
        one.register_hook(
            [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("a bad batch"); });
      }
      const auto loss = (net.loss(step) * one).sum();
      loss.backward();
      EXPECT_FALSE(is_bad) << "step " << step;
      EXPECT_EQ(net.gradient(), step) << "step " << step << ", rank " << job.rank();
    };
    std::string why;
    bool failed = true;
    const bool before = bad == job.rank() && step != 9;
    switch (style) {
      case Style::by_value:
        if (before) {
          net.parallel.fail("an empty batch");
          break;
        }
        try {
          go();
          failed = false;
        } catch (const std::exception&) {
          // Tutti has seen it.
        }
        break;
      case Style::by_exception:
      case Style::by_same_text:
        try {
          if (before) {
            throw std::runtime_error(style == Style::by_exception ? std::to_string(step)
                                                                  : "a bad batch");
          }
        } catch (const std::exception& error) {
          net.parallel.fail(error.what());
          break;
        }
        try {
          go();
          failed = false;
        } catch (const std::exception&) {
          // Tutti has seen it.
        }
        break;
      case Style::reports_everything:
        try {
          go();
          failed = false;
        } catch (const std::exception& error) {
          net.parallel.fail(error.what());
        }
        break;
      case Style::after_the_handler:
        try {
          go();
          failed = false;
        } catch (const std::exception& error) {
          why = error.what();
        }
        if (failed) net.parallel.fail("the program adds: " + why);
        break;
    }
    EXPECT_EQ(failed, is_bad) << "step " << step << ", rank " << job.rank();
  }
  net.model->zero_grad();
  net.loss(1).backward();
  EXPECT_EQ(net.parallel.report().step, kSteps + 1);
}

// findings-3: B1
TEST(FailedSteps, AWorkerThatGivesUpTheStepAfterOneThatAllDroppedStaysInStep) {
  for (const auto style : {Style::by_value, Style::by_exception, Style::by_same_text,
                           Style::reports_everything, Style::after_the_handler}) {
    for (const int workers : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "style " << static_cast<int>(style) << ", " << workers);
      on_workers(workers, [&](const Job& job) { train(job, style); });
    }
  }
}

// findings-3: B1
TEST(FailedSteps, AHandlerThatMakesAnotherExceptionOfTheFailureMayReportIt) {
  on_workers(2, [](const Job& job) {
    Counting net(job);
    for (int step = 1; step <= 4; ++step) {
      net.model->zero_grad();
      try {
        try {
          if (step % 2 == 1 && job.rank() == 1) throw std::runtime_error("no batch");
          net.loss(step).backward();
        } catch (...) {
          std::throw_with_nested(std::logic_error("a step failed"));
        }
        EXPECT_EQ(step % 2, 0);
        EXPECT_EQ(net.gradient(), step);
      } catch (const std::exception& error) {
        net.parallel.fail(error.what());
        EXPECT_EQ(step % 2, 1);
      }
    }
  });
}

// findings-3: B1
TEST(FailedSteps, AScopeThatAnExceptionLeavesIsOneFailureForItsHandlerToo) {
  for (const bool is_late : {false, true}) {  // once the handler has ended
    on_workers(2, [&](const Job& job) {
      Counting net(job);
      int failed = 0;
      for (int step = 1; step <= 6; ++step) {
        net.model->zero_grad();
        std::string why;
        try {
          auto scope = net.parallel.accumulate({.micro_batches = 2});
          scope.micro_batch(1, [&] { return net.loss(step); });
          if ((step == 2 || step == 3) && job.rank() == step % 2) {
            throw std::runtime_error("no second batch");
          }
          scope.micro_batch(1, [&] { return net.loss(step); });
          if (step == 5 && job.rank() == 0) continue;  // without finish(): an error of its own
          scope.finish();
          EXPECT_EQ(net.gradient(), step);
        } catch (const std::exception& error) {
          ++failed;
          why = error.what();
          if (!is_late) net.parallel.fail(why);
        }
        if (is_late && !why.empty()) net.parallel.fail(why);
      }
      EXPECT_EQ(failed, 3);
      EXPECT_EQ(net.parallel.report().step, 6);
    });
  }
}

/// What a worker does in a scope whose step it gives up.
enum class GivenUp { before_finish, in_the_closure, before_its_loss, and_its_backward, twice };

TEST(FailedSteps, AScopeThatFailGivesUpIsOneStepHoweverTheProgramGoesOn) {
  for (const auto how : {GivenUp::before_finish, GivenUp::in_the_closure, GivenUp::before_its_loss,
                         GivenUp::and_its_backward, GivenUp::twice}) {
    for (const int workers : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(how) << ", " << workers);
      on_workers(workers, [&](const Job& job) {
        Counting net(job);
        for (int step = 1; step <= 5; ++step) {
          net.model->zero_grad();
          const bool bad = step % 2 == 0 && job.rank() == (step / 2) % job.size();
          try {
            auto scope = net.parallel.accumulate({.micro_batches = 1});
            scope.micro_batch(1, [&] {
              const auto loss = net.loss(step);
              if (!bad || how == GivenUp::before_finish) return loss;
              net.parallel.fail("bad batch");
              if (how == GivenUp::and_its_backward) loss.backward();
              if (how == GivenUp::twice) net.parallel.fail("bad batch");
              return how == GivenUp::before_its_loss ? loss : torch::Tensor();
            });
            if (bad && how == GivenUp::before_finish) net.parallel.fail("bad batch");
            scope.finish();
            EXPECT_NE(step % 2, 0);
            EXPECT_EQ(net.gradient(), step);
          } catch (const PeerFailed& error) {
            EXPECT_THAT(error.what(), HasSubstr("bad batch"));
            EXPECT_FALSE(bad);
          } catch (const std::exception& error) {
            EXPECT_TRUE(bad) << error.what();
            net.parallel.fail(error.what());
          }
        }
        EXPECT_EQ(net.parallel.report().step, 5);
      });
    }
  }
}

// findings-3: B1
TEST(FailedSteps, AStepThatJoinLeavesOutIsNoneThatAHandlerKnows) {
  on_workers(2, [](const Job& job) {
    Counting net(job);
    if (job.rank() == 0) {
      net.parallel.fail("a bad batch");
      net.loss(2).backward();
      EXPECT_EQ(net.gradient(), 2);
      net.model->zero_grad();
    }
    EXPECT_EQ(net.parallel.join([&] { net.model->zero_grad(); }), job.rank() == 0 ? 0 : 1);
    net.model->zero_grad();
    net.loss(4).backward();
    EXPECT_EQ(net.gradient(), 4);
  });
}

/// What a loss was to count goes with the step that it was for.
TEST(FailedSteps, TheNextWeightIsOfTheStepThatIsGivenUpOrLeftToOthers) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      Counting net(job);
      const auto mean_of_ranks = [&](double weight_of_last) {
        net.model->zero_grad();
        (net.model->weight * (1 + job.rank())).sum().backward();
        double sum = 0;
        double weights = 0;
        for (int rank = 0; rank < workers; ++rank) {
          const double weight = rank + 1 == workers ? weight_of_last : 1;
          sum += weight * (1 + rank);
          weights += weight;
        }
        EXPECT_DOUBLE_EQ(net.gradient(), static_cast<float>(sum / weights));
        net.model->zero_grad();
      };
      const bool is_last = job.rank() + 1 == workers;
      if (is_last) {
        net.parallel.next_weight(7);
        net.parallel.fail("a bad batch");
      } else {
        EXPECT_THROW(net.loss(1).backward(), PeerFailed);
      }
      mean_of_ranks(1);
      if (is_last) net.parallel.next_weight(7);
      mean_of_ranks(7);
      if (is_last) net.parallel.next_weight(7);
      net.parallel.join([] {});
      mean_of_ranks(1);
    });
  }
}

}  // namespace
}  // namespace tutti::test::failed_steps_cases
