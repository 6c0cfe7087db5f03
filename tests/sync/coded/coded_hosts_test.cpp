// Codecs where workers are on several hosts: the model's bits, what crosses hosts, and where
// residuals are.

#include <unistd.h>

#include <csignal>

#include "comm/link/link_engine.h"
#include "comm/on_hosts.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "support/process_ranks.h"
#include "support/sanitized.h"
#include "sync/coded/coded_model.h"
#include "sync/whole_step.h"

namespace tutti::test::coded {
namespace {

const std::vector<HostMap>& maps_of_4() {
  static const std::vector<HostMap> all = {
      even_hosts(4, 2), even_hosts(4, 4), HostMap::of(std::vector<RankSet>{{0, 1, 2}, {3}}),
      HostMap::of(std::vector<RankSet>{{0, 2}, {1, 3}})};  // a logical worker has both
  return all;
}

TEST(CodedGradients, SeveralHostsGiveWhatTheModelGives) {
  for (const auto& hosts : maps_of_4()) {
    for (const auto* codec : {"half", "int8", "topk:0.05"}) {
      for (const std::int64_t logical : {2, 1, 4}) {
        expect_as_model({.codec = codec, .logical_workers = logical}, {4}, on(hosts));
        if (kSanitized) break;
      }
    }
  }
  const auto apart = even_hosts(3, 3);
  expect_as_model({.codec = "threshold:300", .shards = 16, .logical_workers = 5}, {3}, on(apart));
  expect_as_model({.codec = "topk:0.05", .error_feedback = false}, {3}, on(apart));
  expect_as_model(
      {.codec = "topk:0.05",
       .momentum_correction = MomentumCorrection{.momentum = 0.9, .weight_decay = 1e-3}},
      {3}, on(apart));
}

TEST(CodedGradients, OverTcpSeveralHostsGiveWhatTheModelGives) {
  for (const auto* codec : {"half", "topk:0.05"}) {
    const Case test{.codec = codec};
    const auto states = model_of(test);
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          if (job.rank() == 0) set_link_engine({});
          group.barrier();
          Workers all(group, test);
          for (std::int64_t step = 1; step <= kSteps; ++step) {
            all.step(step, states[static_cast<std::size_t>(step - 1)]);
          }
          group.barrier();
        },
        on(even_hosts(4, 2)));
  }
}

TEST(CodedGradients, ADroppedStepLeavesNoResidualOnAnyHost) {
  expect_no_trace_of_dropped_steps({.codec = "topk:0.05"}, on(even_hosts(3, 2)));
}

/// Bytes that rank 0, alone on its host, gives to the other one in each of two steps with one
/// gradient of `count` elements.
double bytes_across(const std::string& codec, std::size_t count) {
  std::uint64_t bytes = 0;
  const auto options = on(even_hosts(2, 2));
  run_thread_ranks(
      2,
      [&](const Job& job) {
        const Group group(job);
        StepExchange exchange(group, plan_of({count}),
                              {.node_boundaries = {0, 1},
                               .coded = true,
                               .stays = [](const PlanEntry&, int, std::int64_t) { return true; }});
        CodedGradients coded(exchange, {.compression = {.codec = codec_of(codec)},
                                        .logical_workers = logical_workers(2, 2),
                                        .shards = 2});
        const auto before = job.state()->bytes_to_hosts();
        for (std::int64_t step = 1; step <= 2; ++step) {
          auto leaf = random_leaf({count}, 2 * step, group.rank(), 3);
          exchange.open_shards(group.rank(), 1);
          exchange.leaves().begin_leaf(1);
          if (!leaf[0]) leaf[0] = Values(count, 1.0f);
          exchange.leaves().write(0, leaf[0]->data(), true);
          coded.wrote(0, 1);
          exchange.leaves().end_leaf();
          finish(exchange, coded);
        }
        if (job.rank() == 0) {
          bytes = job.state()->bytes_to_hosts() - before;
          bytes += options.world->hosts()->link_bytes_from(0);
        }
        group.barrier();
      },
      options);
  return static_cast<double>(bytes) / 2;
}

// promise: links#what-travels-between-hosts
TEST(CodedGradients, WhatCrossesHostsIsTheMessages) {
  constexpr std::size_t kCount = 1'000'000;
  const double dense = 4.0 * kCount;
  EXPECT_GE(dense / bytes_across("half", kCount), 1.95);
  EXPECT_GE(dense / bytes_across("int8", kCount), 3.9);
  EXPECT_GE(dense / bytes_across("topk:0.01", kCount), 20);
}

/// The hub's host sends no more than the others, and in order next to nothing goes.
// promise: links#what-travels-between-hosts
TEST(CodedGradients, AHostSendsItsMessagesToEachOtherOneAndNobodyElses) {
  for (const auto& hosts : {even_hosts(3, 3), even_hosts(6, 3), even_hosts(5, 2)}) {
    const auto options = on(hosts);
    std::vector<std::uint64_t> made(static_cast<std::size_t>(hosts.hosts()));
    std::vector<std::uint64_t> sent(made.size());
    std::atomic<std::uint64_t> in_order{0};
    run_thread_ranks(
        hosts.size(),
        [&](const Job& job) {
          const Group group(job);
          // Each worker is a logical one.
          Workers all(group, {.codec = "half",
                              .shards = hosts.size(),
                              .logical_workers = hosts.size(),
                              .error_feedback = false});
          const auto before = job.state()->bytes_to_hosts();
          const auto host = static_cast<std::size_t>(hosts.host_of(job.rank()));
          for (std::int64_t step = 1; step <= kSteps; ++step) {
            EXPECT_EQ(all.half_step(step, 1), "");
            const auto& board = all.coded().board();
            for (int l = 0; l < hosts.size() && job.rank() == 0; ++l) {
              for (std::size_t b = 0; b < board.buckets().size(); ++b) {
                made[static_cast<std::size_t>(hosts.host_of(l))] +=
                    board.header(static_cast<std::size_t>(l), b).bytes;
              }
            }
            all.exchange().complete([&] { all.coded().note(); });
          }
          in_order += job.state()->bytes_to_hosts() - before;
          if (group.state()->team().rank == 0) {
            sent[host] = options.world->hosts()->link_bytes_from(static_cast<int>(host));
          }
          group.barrier();
        },
        options);
    std::uint64_t all = 0;
    for (std::size_t host = 0; host < made.size(); ++host) {
      EXPECT_GT(made[host], 0u);
      EXPECT_EQ(sent[host], (made.size() - 1) * made[host]) << "host " << host;
      all += sent[host];
    }
    EXPECT_LT(in_order, all / 4);
  }
}

/// All hosts have a part of the one logical worker's gradient.
TEST(CodedGradients, NodesThatTheEncoderOfAnotherHostNeedsGoDirectlyToo) {
  const auto options = on(even_hosts(3, 3));
  std::atomic<std::uint64_t> in_order{0};
  std::uint64_t by_links = 0;
  run_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job);
        const Case test{.codec = "int8", .shards = 3, .logical_workers = 1};
        const auto states = model_of(test);
        Workers all(group, test);
        const auto before = job.state()->bytes_to_hosts();
        all.step(1, states[0]);
        in_order += job.state()->bytes_to_hosts() - before;
        group.barrier();
        if (job.rank() == 0) by_links = options.world->hosts()->link_bytes_from(1);
        group.barrier();
      },
      options);
  // The node of one host, to two others, but for the parameters that it did not touch.
  EXPECT_GT(by_links, 2 * 4096 * sizeof(float));
  EXPECT_LT(in_order, by_links / 2);
}

TEST(CodedGradients, ALinkThatBreaksWhileMessagesTravelIsAnErrorThatNamesTheHost) {
  const auto options = on(even_hosts(4, 2));
  const auto outcome = try_thread_ranks(
      4,
      [&](const Job& job) {
        const Case test{.codec = "half"};
        const auto states = model_of(test);
        Workers all(Group(job), test);
        all.step(1, states[0]);
        Group(job).barrier();
        if (job.rank() == 0) options.world->hosts()->break_links(1);
        Group(job).barrier();
        all.half_step(2, 1);
      },
      options);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.text(rank), ::testing::HasSubstr("the link to the host of rank")) << rank;
  }
}

TEST(CodedGradients, NormsOfResidualsAreKnownOnAllHosts) {
  const auto norms_on = [](const HostMap& hosts) {
    std::vector<double> norms;
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const Case test{.codec = "topk:0.05"};
          const auto states = model_of(test);
          Workers all(Group(job), test);
          std::vector<double> mine;
          for (std::int64_t step = 1; step <= kSteps; ++step) {
            all.step(step, states[static_cast<std::size_t>(step - 1)]);
            for (const auto& bucket : all.coded().traffic().last_step) {
              mine.push_back(bucket.residual_norm);
            }
          }
          if (job.rank() == 3) norms = mine;
          Group(job, "end").barrier();
        },
        on(hosts));
    return norms;
  };
  const auto expected = norms_on(even_hosts(4, 1));
  EXPECT_GT(expected.back(), 0);
  EXPECT_EQ(norms_on(even_hosts(4, 2)), expected);
}

/// What all hosts have after a load, that of rank 0's has read.
TEST(CodedGradients, ResidualsThatOneHostHasReadSpreadToAll) {
  run_thread_ranks(
      3,
      [](const Job& job) {
        const Case test{.codec = "half"};
        Workers all(Group(job), test);
        const auto fill = [&](std::size_t l, std::size_t p) {
          auto* const at = all.coded().board().kept(Kept::residual, l, p);
          std::fill_n(at, kCounts[p], static_cast<float>(1 + l + 10 * p));
        };
        for (std::size_t l = 0; l < 4 && job.rank() == 0; ++l) {
          for (std::size_t p = 0; p < kCounts.size(); ++p) fill(l, p);
        }
        Group(job, "filled").barrier();
        all.coded().spread_kept();
        double squares = 0;
        for (std::size_t l = 0; l < 4; ++l) {
          EXPECT_EQ(all.coded().board().kept(Kept::residual, l, 5)[8'999], 51.0f + l);
          squares += 9'000.0 * (51.0 + l) * (51.0 + l);
        }
        const auto traffic = all.coded().traffic();
        bool is_there = false;
        for (const auto& bucket : traffic.last_step) {
          is_there = is_there || bucket.residual_norm == std::sqrt(squares);
        }
        EXPECT_TRUE(is_there) << "the norm of the bucket that has p5 alone";
        Group(job, "end").barrier();
      },
      on(even_hosts(3, 3)));
}

/// Rank `victim` of 4 is killed in the middle of a coded step; the others get PeerLost of it.
void expect_lost(const HostMap& hosts, int victim) {
  const auto outcome = run_processes(
      hosts,
      [&](int rank, FileDescriptor socket) {
        Identity identity{rank, 4, 1};
        identity.hosts = hosts;
        const Job job(std::make_shared<JobState>(
            identity, host_system(), connect_to_first(std::move(socket), "a test", 0, rank, 4),
            JobOptions{}));
        const Case test{.codec = "topk:0.05"};
        const auto states = model_of(test);
        Workers all(Group(job), test);
        all.step(1, states[0]);
        auto begin = Clock::now();
        try {
          all.half_step(2, 1);
          if (rank == victim) ::raise(SIGKILL);
          begin = Clock::now();
          all.exchange().complete([] {});
          ADD_FAILURE() << "a step without rank " << victim;
        } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.rank(), victim) << lost.what();
          EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));  // the machine may be loaded
        }
      },
      std::chrono::seconds(60));
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(outcome.ranks[static_cast<std::size_t>(rank)].good()) << outcome.describe();
  }
}

TEST(CodedGradients, AWorkerThatIsKilledInACodedStepIsLostOnAllHosts) {
  for (const int victim : {0, 1, 3}) expect_lost(even_hosts(4, 2), victim);
}

}  // namespace
}  // namespace tutti::test::coded
