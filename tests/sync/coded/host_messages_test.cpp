// Messages of codecs that travel between hosts while others are being made.

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "comm/on_hosts.h"
#include "support/expect_lost.h"
#include "sync/coded/coded_model.h"
#include "sync/whole_step.h"

namespace tutti::test::coded {
namespace {

/// Nodes of coded gradients stay on their hosts.
ExchangeOptions coded_nodes_stay() {
  return {.name = "model", .coded = true, .stays = [](const PlanEntry&, int, std::int64_t) {
            return true;
          }};
}

/// Exact in half precision, so that the mean of all workers' is known.
Values constant(std::size_t count, int rank, std::int64_t step) {
  return Values(count, static_cast<float>((rank + 1) * step));
}

/// Rank 1 alone waits for rank 2 when that dies, and rank 0 for rank 1, which then leaves.
TEST(HostMessages, WhoLeavesBecauseAnotherDiedIsNotWhoIsLost) {
  static constexpr std::size_t kCount = 200'000;
  const auto options = on(even_hosts(3, 3));
  const auto outcome = try_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of({kCount}), coded_nodes_stay());
        CodedGradients coded(exchange,
                             {.compression = {.codec = codec_of("half"), .error_feedback = false}});
        auto& hosts = *options.world->hosts();
        std::jthread killing;
        for (std::int64_t step = 1;; ++step) {
          if (step == 2 && job.rank() == 0) hosts.silence_links(1);
          group.barrier();
          if (step == 2 && job.rank() == 2) {
            killing = std::jthread([&hosts, before = hosts.link_bytes_from(2)] {
              const auto end = Clock::now() + std::chrono::seconds(20);
              while (hosts.link_bytes_from(2) - before < 2 * kCount && Clock::now() < end) {
                std::this_thread::yield();
              }
              std::this_thread::sleep_for(std::chrono::milliseconds(100));  // all wait, most likely
              hosts.kill(2);
            });
          }
          exchange.open_one_backward(1);
          const auto gradient = constant(kCount, job.rank(), step);
          exchange.leaves().write(0, gradient.data(), true);
          coded.wrote(0, 1);
          exchange.arrive({});
          coded.begin(1);
          ASSERT_EQ(coded.prepare().text, "");
          ASSERT_EQ(step, 1) << "complete without the messages of a host";
          auto report = exchange.complete([&] { coded.note(); }).report;
          coded.commit(report);
        }
      },
      options);
  expect_lost(outcome, {0, 1}, 2);
}

/// Every third step is dropped, by a worker whose messages are on their way; the one
/// after it makes another link, at its end.
TEST(HostMessages, MessagesTravelHoweverLongTheNextLayersBackwardTakes) {
  constexpr std::size_t kEach = 200'000;
  const std::vector<std::size_t> counts(8, kEach);
  for (const auto& map : {even_hosts(2, 2), even_hosts(4, 2)}) {
    const auto options = on(map);
    run_thread_ranks(
        map.size(),
        [&](const Job& job) {
          const Group group(job);
          StepExchange exchange(group, plan_of(counts), coded_nodes_stay());
          CodedGradients coded(exchange, {.compression = {.codec = codec_of("half"),
                                                          .error_feedback = false,
                                                          .scope = CodecScope::tensor}});
          auto& hosts = *options.world->hosts();
          const auto write = [&](std::size_t p, std::int64_t step) {
            const auto gradient = constant(kEach, job.rank(), step);
            exchange.leaves().write(p, gradient.data(), true);
            coded.wrote(static_cast<std::uint32_t>(p), 1);
          };
          for (std::int64_t step = 1; step <= 9; ++step) {
            group.barrier();
            const auto before = std::pair(hosts.link_bytes(0), hosts.link_bytes(1));
            group.barrier();
            const bool has_link = step % 3 != 1 || step == 1;
            exchange.open_one_backward(1);
            for (std::size_t p = 8; p-- > 4;) write(p, step);
            const auto end = Clock::now() + std::chrono::seconds(40);
            const std::uint64_t bytes = 4 * kEach * 2 * static_cast<unsigned>(map.size() / 2);
            while (has_link && (hosts.link_bytes(0) - before.first < bytes ||
                                hosts.link_bytes(1) - before.second < bytes)) {
              ASSERT_LT(Clock::now(), end) << "in step " << step;
              std::this_thread::yield();
            }
            group.barrier();
            if (step % 3 == 0 && job.rank() == 1) {
              exchange.protocol().fail("a loss of its own");
              continue;
            }
            for (std::size_t p = 4; p-- > 0;) write(p, step);
            if (step % 3 == 0) {
              EXPECT_THROW(exchange.arrive({}), PeerFailed);
              continue;
            }
            exchange.arrive({});
            coded.begin(1);
            ASSERT_EQ(coded.prepare().text, "");
            float sum = 0;
            for (int r = 0; r < map.size(); ++r) sum += constant(1, r, step)[0];
            for (std::uint32_t p = 0; p < 8; ++p) {
              EXPECT_EQ(read_all(coded, p, kEach),
                        Values(kEach, sum / static_cast<float>(map.size())));
            }
            auto report = exchange.complete([&] { coded.note(); }).report;
            coded.commit(report);
          }
          group.barrier();
        },
        options);
  }
}

/// The program has its reasons. What has come meanwhile must not be looked at any more.
TEST(HostMessages, GradientsMayGoInTheMidstOfAStep) {
  constexpr std::size_t kCount = 200'000;
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of({kCount, kCount}), coded_nodes_stay());
        auto coded = std::make_unique<CodedGradients>(
            exchange, CodingOptions{.compression = {.codec = codec_of("half"),
                                                    .error_feedback = false,
                                                    .scope = CodecScope::tensor}});
        exchange.open_one_backward(1);
        const auto gradient = constant(kCount, job.rank(), 1);
        exchange.leaves().write(1, gradient.data(), true);
        coded->wrote(1, 1);
        coded.reset();
        for (int i = 0; i < 3; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          group.barrier();  // wakes whoever looks
        }
        exchange.protocol().fail("it was left");
      },
      on(even_hosts(2, 2)));
}

}  // namespace
}  // namespace tutti::test::coded
