// Models on the test device in 16 bits: under autocast, with loss scales, in both front ends.

#include <ATen/autocast_mode.h>

#include <functional>
#include <limits>
#include <set>
#include <string>

#include "device_parallel/device_trainer_models.h"

namespace tutti::test::device_precision_cases {
namespace {

using device_trainer_cases::Plain;
namespace nn = torch::nn;

/// While it lives, products of this thread on such a device are computed in 16 bits.
class Autocast {
 public:
  Autocast(c10::DeviceType device, torch::ScalarType type) : device_(device) {
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::set_autocast_enabled(device, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
};

/// Products in 16 bits round otherwise than the CPU's.
void expect_same_bytes(const std::function<std::string(const Job&, c10::Device where)>& program) {
  for (const auto held : kProfiles) {
    std::set<std::string> seen;
    for (const int size : {1, 2, 3}) {
      seen.insert(text_on_device_rank_0(
          size, held, [&](const Job& job) { return program(job, local_device(job)); }));
    }
    EXPECT_EQ(seen.size(), 1U);
  }
}

torch::Tensor loss_of(Plain& net, std::uint64_t seed, c10::Device where, torch::ScalarType type,
                      bool again) {
  const Autocast autocast(where.type(), type);
  return net.loss(seed, where, again);
}

// promise: gpu#half-precision
TEST(DevicePrecision, ATrainerUnderAutocastHasTheSameBytesOnAnyNumberOfWorkers) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const bool again : {false, true}) {
      expect_same_bytes([&](const Job& job, c10::Device where) {
        torch::manual_seed(3);
        Plain net;
        net.to(where);
        Trainer trainer(job, net, Adam{.lr = 0.01},
                        {.shards = 5,
                         .loss_scale = {.start = 1 << 20, .dynamic = true, .grow_after = 2},
                         .audit_every = 2});
        std::string seen;
        for (int k = 0; k < 6; ++k) {
          const auto result = trainer.step([&](Shard& shard) {
            return shard.loss(loss_of(net, shard.seed(), where, type, again));
          });
          seen += device_trainer_cases::text_of_result(result);
        }
        return seen + trainer.state_sha256() + state_of(net);
      });
    }
  }
}

// promise: gpu#half-precision, loss_scaler.h#step
TEST(DevicePrecision, ADataParallelWithALossScalerHasTheSameBytesOnAnyNumberOfWorkers) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    expect_same_bytes([&](const Job& job, c10::Device where) {
      torch::manual_seed(3);
      Plain net;
      net.to(where);
      DataParallel parallel(job, net);
      torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      LossScaler scaler(parallel, {.start = 1 << 20, .dynamic = true, .grow_after = 2});
      std::string seen;
      const auto [begin, end] = share_of(6, job.rank(), job.size());
      for (std::uint64_t step = 1; step <= 6; ++step) {
        optimizer.zero_grad();
        auto scope = parallel.accumulate({.micro_batches = end - begin, .seed = 9});
        for (auto k = begin; k < end; ++k) {
          scope.micro_batch(1, [&] {
            const auto seed = 10 * step + static_cast<std::uint64_t>(k);
            const auto loss = loss_of(net, seed, where, type, false);
            // Rows of one worker that overflow.
            const bool is_bad = step == 3 && k == 5;
            return scaler.scale(is_bad ? loss * std::numeric_limits<float>::infinity() : loss);
          });
        }
        scope.finish();
        const bool stepped = scaler.step(optimizer);
        scaler.update();
        if (step == 3) {
          EXPECT_FALSE(stepped);
        }
        seen += fmt::format("{} {}\n", stepped, scaler.factor());
      }
      EXPECT_THAT(seen, ::testing::HasSubstr("true"));
      return seen + state_of(net);
    });
  }
}

}  // namespace
}  // namespace tutti::test::device_precision_cases
