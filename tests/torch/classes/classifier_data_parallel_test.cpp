// The split classifier in the steps of a DataParallel.

#include "torch/classes/trained_classifier.h"
#include "tutti/split_tensors.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trained::DenseTwin;
using trained::Net;
using trained::samples_of;

// promise: split_module.h#divide_kept
TEST(ClassifierInADataParallel, IsTheDenseModelWithTheWeightsOfTheStep) {
  for (const bool scoped : {false, true}) {
    on_workers(3, [&](const Job& job) {
      const Group group(job);
      auto net = std::make_shared<Net>(group, Options{});
      DenseTwin twin(*net);
      torch::optim::SGD of_trunk(net->trunk->parameters(), torch::optim::SGDOptions(0.1));
      DataParallel parallel(group, *net);
      const auto loss_of = [&](std::int64_t step, std::int64_t part) {
        const auto [x, y] = samples_of(step, part);
        return net->head->forward(net->trunk->forward(x), y);
      };
      for (std::int64_t step = 1; step <= 3; ++step) {
        const double weight = 1 + job.rank();
        if (scoped) {
          auto scope = parallel.accumulate();
          for (const std::int64_t part : {0, 1}) {
            scope.micro_batch(weight + static_cast<double>(part),
                              [&] { return loss_of(step, 2 * job.rank() + part); });
          }
          scope.finish();
        } else {
          parallel.next_weight(weight);
          loss_of(step, 2 * job.rank()).backward();
        }
        of_trunk.step();
        of_trunk.zero_grad();
        net->head->step();
        torch::Tensor sum = torch::zeros({});
        double weights = 0;
        for (int rank = 0; rank < 3; ++rank) {
          for (std::int64_t part = 0; part < (scoped ? 2 : 1); ++part) {
            const auto [x, y] = samples_of(step, 2 * rank + part);
            const double w = 1 + rank + static_cast<double>(part);
            weights += w;  // the loss of no samples is 0, and counts
            if (x.size(0) > 0) {
              sum = sum + w * twin.losses(x, y).mean();
            }
          }
        }
        twin.backward(sum / weights);
        twin.step();
        twin.expect_near_to(*net);
      }
      EXPECT_EQ(net->head->updates(), 3);
    });
  }
}

// promise: split_module.h#forget_kept
TEST(ClassifierInADataParallel, OfAFailedStepNothingIsApplied) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    auto net = std::make_shared<Net>(group, Options{});
    DataParallel parallel(group, *net);
    const auto sha = net->head->sha256();
    const auto step = [&](bool fails) {
      auto scope = parallel.accumulate();
      scope.micro_batch(1, [&] {
        const auto [x, y] = samples_of(1, job.rank());
        return net->head->forward(net->trunk->forward(x), y);
      });
      if (fails && job.rank() == 1) throw std::runtime_error("no such file");
      scope.finish();
    };
    EXPECT_ANY_THROW(step(true));
    net->head->step();
    EXPECT_EQ(net->head->updates(), 0);
    EXPECT_EQ(net->head->sha256(), sha);
    step(false);
    net->head->step();
    EXPECT_EQ(net->head->updates(), 1);
  });
}

// promise: parallel_cross_entropy.h#forward
TEST(ClassifierInADataParallel, AGradientThatIsNeitherAppliedNorForgottenIsSaid) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    auto net = std::make_shared<Net>(group, Options{});
    torch::optim::SGD of_trunk(net->trunk->parameters(), torch::optim::SGDOptions(0.1));
    DataParallel parallel(group, *net);
    const auto forward = [&] {
      const auto [x, y] = samples_of(1, job.rank());
      return net->head->forward(net->trunk->forward(x), y);
    };
    const auto step = [&] {
      of_trunk.zero_grad();
      forward().backward();
      of_trunk.step();
    };
    step();
    EXPECT_THAT(text_of([&] { step(); }),
                AllOf(HasSubstr("classifier \"classifier\""),
                      HasSubstr("gradient of a step that is over"), HasSubstr("zero_grad()")));
    {
      const torch::NoGradGuard no_grad;
      forward();
    }
    net->head->step();
    step();
    net->zero_grad();
    step();
    net->head->step();
    EXPECT_EQ(net->head->updates(), 2);
  });
}

// promise: split_module.h#updates_itself
TEST(ClassifierInADataParallel, OverOtherRanksIsRefused) {
  on_workers(4, [&](const Job& job) {
    const Group world(job);
    const Group model = world.split(job.rank() / 2, "model");
    const Group data = world.split(job.rank() % 2, "data");
    auto net = std::make_shared<Net>(model, Options{});
    EXPECT_THAT(text_of<Unsupported>([&] { const DataParallel parallel(data, *net); }),
                AllOf(HasSubstr("layer \"head\" is split over ranks"), HasSubstr("updates itself"),
                      HasSubstr("split it over all workers")));
    const Group alone = world.split(job.rank(), "alone");
    EXPECT_NO_THROW(const DataParallel parallel(alone, *net));
  });
}

// promise: split_module.h#kept_squares, split_module.h#scale_kept, split_tensors.h#clip_grad_norm
TEST(ClassifierInADataParallel, IsClippedWithTheModel) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    for (const double bound : {0.2, 100.0}) {
      auto net = std::make_shared<Net>(group, Options{});
      DenseTwin twin(*net);
      torch::optim::SGD of_trunk(net->trunk->parameters(), torch::optim::SGDOptions(0.1));
      DataParallel parallel(group, *net);
      for (std::int64_t step = 1; step <= 2; ++step) {
        const auto [x, y] = samples_of(step, job.rank());
        of_trunk.zero_grad();
        net->head->forward(net->trunk->forward(x), y).backward();
        const double norm = clip_grad_norm(group, *net, bound);
        of_trunk.step();
        net->head->step();
        torch::Tensor sum = torch::zeros({});
        for (int rank = 0; rank < 3; ++rank) {
          const auto [x_of, y_of] = samples_of(step, rank);
          sum = sum + twin.losses(x_of, y_of).mean();
        }
        twin.backward(sum / 3);
        EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(twin.parameters(), bound), 1e-5);
        twin.step();
        twin.expect_near_to(*net);
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
