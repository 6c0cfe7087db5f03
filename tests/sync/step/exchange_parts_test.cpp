// The parts of a step exchange by themselves: its protocol over bare boards, and what each of the
// others answers in a step.

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "support/text_of.h"
#include "support/thread_ranks.h"
#include "sync/step/exchange_options.h"
#include "sync/step/step_exchange.h"
#include "sync/whole_step.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

/// A protocol without gradients: boards, and nothing that waits for anything else.
struct BareProtocol {
  explicit BareProtocol(const Job& job)
      : group(job),
        memory(group, "bare"),
        boards(memory.add<StepBoard>(std::size_t{0}, std::size_t{0})),
        protocol(boards, options,
                 {.what = [] { return std::string("a bare step"); },
                  .pause = [] {},
                  .drop = [this] { ++drops; }}) {}

  void open() {
    protocol.begin();
    protocol.open(StepMode::no_gradient, 0, 0, false, 0);
  }

  Group group;
  ExchangeOptions options{.name = "bare", .hint = "; a hint"};
  StepMemory memory;
  StepBoards boards;
  int drops = 0;
  StepProtocol protocol;
};

TEST(StepProtocol, AFailureDropsTheStepOnAllAndTheNextOneIsNumberedOn) {
  for (const int workers : {2, 3}) {
    run_thread_ranks(workers, [](const Job& job) {
      BareProtocol bare(job);
      bare.protocol.number_next(7);
      bare.open();
      EXPECT_EQ(bare.protocol.step_text(), "step 7 of \"bare\"");
      if (job.rank() == 1) {
        bare.protocol.fail("no more memory");
      } else {
        try {
          bare.protocol.barrier("the end of");
          ADD_FAILURE() << "no error";
        } catch (const PeerFailed& error) {
          EXPECT_STREQ(error.what(),
                       "step 7 of \"bare\": rank 1 failed: no more memory; the step is dropped by "
                       "all workers");
        }
      }
      EXPECT_EQ(bare.drops, 1);
      EXPECT_FALSE(bare.protocol.is_open());
      bare.open();
      EXPECT_EQ(bare.protocol.number(), 8);
      bare.protocol.barrier("the end of");
      bare.protocol.complete([] {});
      bare.protocol.close(true);
      EXPECT_EQ(bare.protocol.numbers().done, 2U);
      EXPECT_FALSE(bare.protocol.ending().is_over());
      bare.group.barrier();
    });
  }
}

TEST(ExchangeEnding, AMismatchOfOneIsTheReasonOfAllAndOfEveryLaterCall) {
  run_thread_ranks(3, [](const Job& job) {
    BareProtocol bare(job);
    bare.open();
    const auto refused = [&](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "no error";
      } catch (const Mismatch& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 2 saw it"));
      }
    };
    if (job.rank() == 2) {
      refused([&] { bare.protocol.guarded([] { throw Mismatch("rank 2 saw it"); }); });
    } else {
      refused([&] { bare.protocol.barrier("the end of"); });
    }
    const ExchangeEnding& ending = bare.protocol.ending();
    EXPECT_TRUE(ending.is_over());
    EXPECT_FALSE(ending.has_succeeded(1));
    refused([&] { bare.protocol.begin(); });
    bare.group.barrier();
  });
}

ExchangeOptions options_of_parts() {
  return {.name = "parts", .fusion = 64, .first_fusion = 64, .sync_buffers = false};
}

TEST(LeafIntake, TheNextLeafFollowsThoseOfTheWorkersBefore) {
  run_thread_ranks(3, [](const Job& job) {
    StepExchange exchange(Group(job), plan_of({10}), options_of_parts());
    exchange.open_scope(job.rank() + 1);
    LeafIntake& leaves = exchange.leaves();
    const std::vector<float> gradient(10, 1);
    for (int k = 0; k <= job.rank(); ++k) {
      EXPECT_EQ(leaves.next_leaf(), (job.rank() + 1) * job.rank() / 2 + k);
      leaves.begin_leaf(1);
      EXPECT_FALSE(leaves.finished(0));
      leaves.write(0, gradient.data(), true);
      EXPECT_TRUE(leaves.finished(0));
      leaves.end_leaf();
    }
    exchange.arrive({});
    exchange.complete([&] { exchange.fold_slices(); });
  });
}

TEST(ModelAgreement, TheBuffersAreThoseOfTheFirstWorkerWhoseLeafCounts) {
  for (const auto& [weights, source] :
       std::vector<std::pair<std::vector<double>, int>>{{{0, 2, 1}, 1}, {{0, 0, 0}, 0}}) {
    run_thread_ranks(3, [&](const Job& job) {
      StepExchange exchange(Group(job), plan_of({10}), options_of_parts());
      exchange.open_one_backward(weights[static_cast<std::size_t>(job.rank())]);
      const std::vector<float> gradient(10, 1);
      exchange.leaves().write(0, gradient.data(), true);
      const ModelAgreement& model = exchange.model();
      exchange.arrive({});
      EXPECT_EQ(model.buffer_source(), source);
      exchange.complete([&] { exchange.fold_slices(); });
    });
  }
}

TEST(BucketFolds, LeaveEarlyInAStepOfOneBackwardAlone) {
  run_thread_ranks(2, [](const Job& job) {
    StepExchange exchange(Group(job), plan_of({5000, 5000}), small_buckets());
    const std::vector<float> gradient(5000, 1);
    exchange.open_one_backward(1);
    for (const std::size_t p : {0, 1}) exchange.leaves().write(p, gradient.data(), true);
    EXPECT_EQ(finish(exchange).report.buckets, 2);
    exchange.open_scope({});
    exchange.leaves().begin_leaf(1);
    for (const std::size_t p : {0, 1}) exchange.leaves().write(p, gradient.data(), true);
    EXPECT_EQ(finish(exchange).report.buckets, 1);
  });
}

TEST(HostExchange, OnOneHostNothingIsSent) {
  run_thread_ranks(2, [](const Job& job) {
    StepExchange exchange(Group(job), plan_of({10}), options_of_parts());
    HostExchange& hosts = exchange.hosts();
    EXPECT_FALSE(hosts.spans_hosts());
    EXPECT_FALSE(hosts.can_send());
    EXPECT_FALSE(hosts.has_background());
    EXPECT_EQ(hosts.arenas_here(), 2);
    exchange.open_without_gradient(1, false);
    hosts.barrier("nothing of", {});
    exchange.protocol().fail("it is over");
    EXPECT_EQ(hosts.drops(), 1U);
    exchange.group().barrier();
  });
}

}  // namespace
}  // namespace tutti::test
