// Collectives on tensors of a device, plain and as operations of autograd: the CPU's bytes.

#include <functional>
#include <numeric>
#include <thread>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_collectives_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::Tensor numbers(const Job& job, std::int64_t rows, c10::Device where) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(job.rank()));
  return torch::randn({rows, 5}, generator).to(where);
}

std::string joined(const std::vector<torch::Tensor>& tensors) {
  std::string bytes;
  for (const auto& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

/// Values that the device computes when they are asked for, in a stream that may be late.
std::string moved(const Job& job, c10::Device where) {
  const Group group(job);
  const int last = job.size() - 1;
  std::vector<torch::Tensor> all;
  for (const auto reduction : {Reduction::sum, Reduction::mean, Reduction::max}) {
    all.push_back(numbers(job, 4, where) * 3);
    all_reduce(group, all.back(), reduction);
    all.push_back(all.back() + 1);
  }
  all.push_back(torch::empty({4, 5}, where));
  reduce(group, numbers(job, 4, where) * 2, all.back(), Reduction::sum, last);
  if (job.rank() != last) all.pop_back();
  all.push_back(torch::empty({2, 5}, where));
  reduce_scatter(group, numbers(job, 2 * job.size(), where) * 2, all.back(), Reduction::sum);
  all.push_back(all_gather(group, numbers(job, 3, where) * 2) * 2);
  all.push_back(all_gather_variable(group, numbers(job, job.rank(), where) * 2) * 2);
  all.push_back(numbers(job, 3, where) * 7);
  broadcast(group, all.back(), last);
  all.push_back(all.back() * 2);
  auto bytes = torch::arange(6, torch::kUInt8).to(where);
  all_reduce(group, bytes, Reduction::max);
  all.push_back(bytes);
  return joined(all);
}

TEST(DeviceCollectives, HaveTheBytesOfTheCpu) { expect_bytes_of_the_cpu(moved); }

/// Parts that are combined before they are reduced.
std::string combined(const Job& job, c10::Device where) {
  const Group group(job);
  const auto x = numbers(job, 3, where).requires_grad_();
  const auto mean =
      combine(partial_mean(group, x * 2, job.rank() + 1), partial_mean(group, x.square(), 0.5))
          .reduce();
  const auto sum = partial_sum(group, mean * x).reduce();
  sum.sum().backward();
  const auto any = Partial<Whole::any>(group, x.detach() > 1).reduce();
  return joined({mean, sum, x.grad(), any});
}

TEST(DeviceCollectives, OfPartialValuesHaveTheBytesOfTheCpu) { expect_bytes_of_the_cpu(combined); }

/// Results and gradients of all operations, of every worker.
std::string differentiated(const Job& job, c10::Device where) {
  const Group group(job);
  const auto size = static_cast<std::size_t>(job.size());
  const std::vector<std::int64_t> rows(size, 2);
  std::vector<torch::Tensor> all;
  const auto run = [&](const std::function<torch::Tensor(const torch::Tensor&)>& operation,
                       std::int64_t count) {
    const auto x = numbers(job, count, where).requires_grad_();
    const auto y = operation(x * 2);
    (y * y).sum().backward();
    all.push_back(y);
    if (x.grad().defined()) all.push_back(x.grad());
  };
  const auto all_rows = 2 * static_cast<std::int64_t>(size);
  for (const auto reduction :
       {Reduction::sum, Reduction::mean, Reduction::max, Reduction::product}) {
    run([&](const auto& x) { return ops::all_reduce(group, x, reduction); }, 3);
  }
  run([&](const auto& x) { return ops::reduce_scatter(group, x, Reduction::sum, rows); }, all_rows);
  run([&](const auto& x) { return ops::all_gather(group, x); }, 1 + job.rank());
  run([&](const auto& x) { return ops::gather(group, x, 0); }, 2);
  run([&](const auto& x) { return ops::broadcast(group, x, 0); }, 2);
  run([&](const auto& x) { return ops::scatter(group, x, rows, 0); }, all_rows);
  run([&](const auto& x) { return ops::all_to_all(group, x, rows, rows); }, all_rows);
  run([&](const auto& x) { return ops::copy_to_group(group, x); }, 2);
  run([&](const auto& x) { return ops::reduce_from_group(group, x); }, 2);
  const auto own = joined(all);
  std::vector<std::int64_t> counts(size);
  const auto count = static_cast<std::int64_t>(own.size());
  group.all_gather({&count, 1, DType::int64}, {counts.data(), job.size(), DType::int64});
  std::string every(
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})),
      ' ');
  group.all_gather_variable({own.data(), count, DType::uint8},
                            {every.data(), static_cast<std::int64_t>(every.size()), DType::uint8},
                            counts);
  return every;
}

TEST(DeviceCollectives, AsOperationsHaveTheBytesOfTheCpuAndSoHaveGradients) {
  expect_bytes_of_the_cpu(differentiated);
}

// A device's thread runs backward: what the program's has started has to move meanwhile.
TEST(DeviceCollectives, WhatTheProgramHasStartedMovesWhileBackwardWaits) {
  on_device_workers(2, test_device::Held::kSideStreams, [](const Job& job) {
    const Group first(job, "first");
    const Group second(job, "second");
    auto host = torch::full({1 << 22}, static_cast<float>(job.rank() + 1));
    const auto x = torch::ones({3}, local_device(job)).requires_grad_();
    const auto y = ops::all_reduce(second, x, Reduction::sum);
    auto work = start_all_reduce(first, host, Reduction::sum);
    if (job.rank() == 1) work.wait();  // it needs rank 0, which is in backward()
    y.sum().backward();
    work.wait();
    EXPECT_EQ(host[0].item<float>(), 3);
  });
}

/// Small sums and large ones, which are started before the device has computed anything, beside
/// calls of the host in between; of the last nobody asks for the result.
std::string started(const Job& job, c10::Device where) {
  const Group group(job, "started", {.lanes = 2});
  std::vector<torch::Tensor> all;
  std::vector<Work> under_way;
  for (const std::int64_t rows : {1, 3, 20000, 2, 5, 9000, 1}) {
    all.push_back(numbers(job, rows, where) * 3);
    under_way.push_back(start_all_reduce(group, all.back(), Reduction::sum));
  }
  auto host = torch::full({4}, job.rank());
  auto of_host = start_all_reduce(group, host, Reduction::max);
  auto last = numbers(job, 2, where) * 2;
  all_reduce(group, last, Reduction::mean);  // comes after all of them
  for (std::size_t k = 0; k < under_way.size(); ++k) {
    while (k % 2 == 1 && !under_way[k].done()) std::this_thread::yield();
    under_way[k].wait();
    all.push_back(all[k] + 1);
  }
  of_host.wait();
  all.push_back(host);
  all.push_back(last);
  all.push_back(torch::ones({3}, where));
  { const auto dropped = start_all_reduce(group, all.back(), Reduction::sum); }
  return std::to_string(std::hash<std::string>()(joined(all)));
}

TEST(DeviceCollectives, ThatAreStartedHaveTheBytesOfTheCpu) { expect_bytes_of_the_cpu(started); }

TEST(DeviceCollectives, ThatAreStartedBetweenHosts) {
  const auto outcome = run_process_ranks(3,
                                         [](const Job& job) {
                                           at::set_num_threads(1);
                                           test_device::register_device(2);
                                           std::string on_cpu = started(job, torch::kCPU);
                                           EXPECT_EQ(started(job, local_device(job)), on_cpu);
                                         },
                                         {.hosts = even_hosts(3, 2)});
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: tensors.h#start_all_reduce
TEST(DeviceCollectives, ThatAreStartedDoNotWaitForTheDevice) {
  on_device_workers(2, test_device::Held::kSideStreams, [](const Job& job) {
    const Group group(job);
    auto x = torch::ones({3}, local_device(job)) * 2;
    test_device::synchronize();
    const auto before = test_device::counters().ran;
    auto work = start_all_reduce(group, x, Reduction::sum);
    EXPECT_EQ(test_device::counters().ran, before);
    EXPECT_FALSE(work.done());  // its copy has not come
    work.wait();
    EXPECT_EQ(bytes_of(x), bytes_of(torch::full({3}, 4.0F)));
  });
}

// The other worker needs what this one has started while it is in a call of another group.
TEST(DeviceCollectives, ThatAreStartedMoveWhileTheProgramWaitsElsewhere) {
  for (const auto held : kProfiles) {
    on_device_workers(2, held, [](const Job& job) {
      const Group first(job, "first");
      const Group second(job, "second");
      for (const std::int64_t count : {3, 1 << 20}) {
        auto x = torch::ones({count}, local_device(job)) * (job.rank() + 1);
        auto work = start_all_reduce(first, x, Reduction::sum);
        if (job.rank() == 1) work.wait();
        auto y = torch::ones({3});
        all_reduce(second, y, Reduction::sum);
        work.wait();
        EXPECT_EQ(bytes_of(x), bytes_of(torch::full({count}, 3.0F)));
      }
    });
  }
}

// promise: group.h#Work
TEST(DeviceCollectives, OfATensorThatOneUnderWayWritesAreRefused) {
  on_device_workers(2, test_device::Held::kSideStreams, [](const Job& job) {
    const Group group(job);
    auto x = torch::ones({3, 5}, local_device(job));
    auto row = x[1];
    auto work = start_all_reduce(group, x, Reduction::sum, {.label = "the first"});
    const auto is_refused = [&](const std::function<void()>& call) {
      EXPECT_THAT(text_of<InvalidArgument>(call),
                  AllOf(HasSubstr("touches memory that a call under way writes: all-reduce sum"),
                        HasSubstr("the first"), HasSubstr("wait for that one first")));
    };
    is_refused([&] { start_all_reduce(group, x, Reduction::sum).wait(); });
    is_refused([&] { all_reduce(group, row, Reduction::sum); });
    is_refused([&] { all_gather(group, row); });
    work.wait();
    all_reduce(group, row, Reduction::sum);
    EXPECT_EQ(bytes_of(x.sum(1)), bytes_of(torch::tensor({10.0F, 20.0F, 10.0F})));
  });
}

// The sum of a call that is complete is in the host's copy until the program waits for that call.
// promise: group.h#Work
TEST(DeviceCollectives, OfATensorWhoseSumHasNotComeBackAreRefused) {
  on_device_workers(2, test_device::Held::kSideStreams, [](const Job& job) {
    const Group group(job, "one lane", {.lanes = 1});
    auto x = torch::ones({3}, local_device(job));
    auto y = torch::ones({2}, local_device(job));
    auto first = start_all_reduce(group, x, Reduction::sum, {.label = "the first"});
    const auto is_refused = [&](const std::function<void()>& call) {
      EXPECT_THAT(text_of<InvalidArgument>(call),
                  AllOf(HasSubstr("touches memory that a call under way writes: all-reduce sum"),
                        HasSubstr("the first"), HasSubstr("wait for that one first")));
    };
    all_reduce(group, y, Reduction::sum);  // on the lane of the first, which is complete now
    is_refused([&] { start_all_reduce(group, x, Reduction::sum).wait(); });
    for (int k = 0; k < 9; ++k) all_reduce(group, y, Reduction::sum);
    is_refused([&] { all_reduce(group, x, Reduction::sum); });
    EXPECT_TRUE(first.done());
    is_refused([&] { all_gather(group, x); });
    first.wait();
    all_reduce(group, x, Reduction::sum);
    EXPECT_EQ(bytes_of(x), bytes_of(torch::full({3}, 4.0F)));
  });
}

// What autograd has kept of a tensor is not what the sum leaves there.
TEST(DeviceCollectives, ThatAreStartedCountForAutograd) {
  on_device_workers(2, test_device::Held::kSideStreams, [](const Job& job) {
    const Group group(job);
    const auto weight = torch::ones({3}, local_device(job)).requires_grad_();
    auto x = torch::ones({3}, local_device(job));
    const auto loss = (weight * x).sum();
    start_all_reduce(group, x, Reduction::sum).wait();
    EXPECT_THROW(loss.backward(), c10::Error);
  });
}

// The rows are not there, which the device tells late.
TEST(DeviceCollectives, ThatAreStartedFailWithTheirDeviceOnAll) {
  for (const bool is_polled : {false, true}) {
    on_workers(2, [&](const Job& job) {
      test_device::register_device();
      const Group group(job);
      const auto table = torch::ones({4, 3}, local_device(job));
      const auto rows = torch::tensor({0, job.rank() == 1 ? 7 : 1}).to(local_device(job));
      auto x = torch::embedding(table, rows);
      const auto sum = [&] {
        auto work = start_all_reduce(group, x, Reduction::sum);
        while (is_polled && !work.done()) std::this_thread::yield();
        work.wait();
      };
      if (job.rank() == 0) {
        EXPECT_THAT(text_of<PeerFailed>(sum),
                    AllOf(HasSubstr("rank 1 has failed"), HasSubstr("index out of range")));
      } else {
        EXPECT_THAT(text_of(sum), HasSubstr("index out of range"));
      }
      EXPECT_THAT(text_of<PeerFailed>([&] { group.barrier(); }), HasSubstr("rank 1 has failed"));
    });
  }
}

}  // namespace
}  // namespace tutti::test::device_collectives_cases
