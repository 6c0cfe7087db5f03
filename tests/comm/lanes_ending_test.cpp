// How a group with several lanes ends: for one reason, on all lanes, alike for all members.

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/collective_cases.h"
#include "comm/lengths.h"
#include "comm/local/control_arena.h"
#include "comm/on_hosts.h"
#include "support/process_ranks.h"
#include "support/sanitized.h"
#include "support/shared_between_processes.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;

std::vector<ThreadOptions> places() {
  return {ThreadOptions{}, on(std::vector<RankSet>{{0, 1}, {2}})};
}

/// What the call throws; "" if nothing.
template <class Error>
std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

/// Calls 1 to 3, each too large for one wait: none of them is complete before all ranks have worked
/// on it.
struct Started {
  explicit Started(const Group& group) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i] = group.start().all_reduce(view(x[i]), view(x[i]), Reduction::sum);
    }
  }
  std::array<Values<float>, 3> x{Values<float>(kLarge), Values<float>(kLarge),
                                 Values<float>(kLarge)};
  std::array<Work, 3> works;
};

/// All calls under way, and later ones, throw the same.
template <class Error>
std::string text_of_all(const Group& group, Started& started, const Job& job) {
  std::string text;
  for (std::size_t i = 0; i < started.works.size(); ++i) {
    // Each rank waits for another one first.
    Work& work = started.works[(i + static_cast<std::size_t>(job.rank())) % 3];
    const std::string one = text_of<Error>([&] { work.wait(); });
    EXPECT_NE(one, "") << "succeeded";
    if (i == 0) text = one;
    EXPECT_EQ(one, text);
  }
  for (int later = 0; later < 5; ++later) {
    EXPECT_EQ(text_of<Error>([&] { group.barrier(); }), text);
  }
  return text;
}

void expect_fresh_group_works(const Job& job, const std::vector<int>& ranks) {
  const Group fresh(job, ranks, "fresh");
  int one = 1;
  fresh.all_reduce(view(&one, 1), Reduction::sum);
  EXPECT_EQ(one, fresh.size());
}

// promise: group#lanes-several-calls-at-a-time, group.h#Group
TEST(EndedLanes, MismatchOnOneEndsAllForAll) {
  for (const auto& place : places()) {
    std::array<std::string, kRanks> texts;
    run_thread_ranks(
        kRanks,
        [&](const Job& job) {
          const Group group(job, "world", {.lanes = 4});
          Started started(group);
          const char* const label = job.rank() == 2 ? "two" : "one";
          Work fourth = group.start().barrier({.label = label});
          // Rank 2 has not worked on the first three.
          if (job.rank() == 2) {
            EXPECT_THROW(fourth.wait(), Mismatch);
          }
          texts[static_cast<std::size_t>(job.rank())] = text_of_all<Mismatch>(group, started, job);
          if (job.rank() != 2) {
            EXPECT_THROW(fourth.wait(), Mismatch);
          }
          expect_fresh_group_works(job, {0, 1, 2});
        },
        place);
    for (const auto& text : texts) {
      EXPECT_EQ(
          text,
          "members of group \"world\" disagree in call 4: ranks 0 1: barrier \"one\"; rank 2: "
          "barrier \"two\"");
    }
  }
}

// promise: group#lanes-several-calls-at-a-time
TEST(EndedLanes, AMemberThatFailsEndsAllForAll) {
  for (const auto& place : places()) {
    std::atomic<int> there{0};
    run_thread_ranks(
        kRanks,
        [&](const Job& job) {
          const Group group(job, "world", {.lanes = 4});
          Started started(group);
          ++there;
          while (there < kRanks) std::this_thread::yield();
          if (job.rank() == 2) group.fail("no more");
          EXPECT_EQ(text_of_all<PeerFailed>(group, started, job),
                    "rank 2 has failed, and with it group \"world\": no more");
          expect_fresh_group_works(job, {0, 1, 2});
        },
        place);
  }
}

// promise: group#lanes-several-calls-at-a-time, group.h#Group
TEST(EndedLanes, DeadlineOfOneEndsAllForAllAndNamesTheCallOfTheGroup) {
  for (const auto& place : places()) {
    std::atomic<int> there{0};
    std::atomic<int> over{0};
    run_thread_ranks(
        kRanks,
        [&](const Job& job) {
          const Group group(job, "world", {.lanes = 4});
          group.barrier();
          Started started(group);
          ++there;
          while (there < kRanks) std::this_thread::yield();
          if (job.rank() == 2) {
            while (over < 2) std::this_thread::yield();
          } else {
            EXPECT_THROW(group.barrier({.label = "epoch", .deadline = milliseconds(300)}), Timeout);
            ++over;
          }
          EXPECT_THAT(
              text_of_all<Timeout>(group, started, job),
              StartsWith("rank 2 has not reached barrier \"epoch\", call 5 of group \"world\""));
          while (over < 2) std::this_thread::yield();
        },
        place);
  }
}

// promise: group#lanes-several-calls-at-a-time
TEST(EndedLanes, DeathOfAMemberEndsAllForAll) {
  const SharedBetweenProcesses<std::atomic<int>> there;
  const auto outcome = run_process_ranks(kRanks, [&](const Job& job) {
    const Group group(job, "world", {.lanes = 4});
    Started started(group);
    ++*there;
    while (*there < kRanks) std::this_thread::yield();
    if (job.rank() == 2) ::raise(SIGKILL);
    EXPECT_THAT(text_of_all<PeerLost>(group, started, job),
                HasSubstr("rank 2 ended before reaching all-reduce sum float32"));
    expect_fresh_group_works(job, {0, 1});
  });
  EXPECT_TRUE(outcome.ranks[0].good() && outcome.ranks[1].good()) << outcome.describe();
  EXPECT_EQ(outcome.ranks[2].signal, SIGKILL);
}

/// Whichever lane each looks at first, all are told of the first call in which they differ.
// promise: group#lanes-several-calls-at-a-time, group.h#Group
TEST(EndedLanes, CallsInAnotherOrderAreAMismatchThatNamesBoth) {
  for (const int lanes : {1, 2, 4}) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      std::array<std::string, kRanks> texts;
      std::atomic<int> there{0};
      run_thread_ranks(kRanks, [&](const Job& job) {
        const Group group(job, "world", {.lanes = lanes});
        group.barrier();
        Values<float> a(3);
        Values<double> b(kLarge);
        std::array<Work, 2> works;
        const auto start_a = [&] {
          return group.start().all_reduce(view(a), view(a), Reduction::sum, {.label = "a"});
        };
        const auto start_b = [&] { return group.start().broadcast(view(b), 1, {.label = "b"}); };
        if (job.rank() == 1) {
          works = {start_b(), start_a()};
        } else {
          works = {start_a(), start_b()};
        }
        ++there;
        while (there < kRanks) std::this_thread::yield();
        const auto first = static_cast<std::size_t>(job.rank() + attempt) % 2;
        auto& text = texts[static_cast<std::size_t>(job.rank())];
        text = text_of<Mismatch>([&] { works[first].wait(); });
        EXPECT_EQ(text_of<Mismatch>([&] { works[1 - first].wait(); }), text);
        EXPECT_EQ(text_of<Mismatch>([&] { group.barrier(); }), text);
      });
      for (const auto& text : texts) {
        ASSERT_EQ(text,
                  "members of group \"world\" disagree in call 2: ranks 0 2: all-reduce sum "
                  "float32[3] \"a\"; rank 1: broadcast float64[131105] from rank 1 \"b\"");
      }
    }
  }
}

/// A member that ends the group, at any moment, has calls on several lanes which others may have
/// found complete, and others which nobody has.
// promise: group#lanes-several-calls-at-a-time
TEST(EndedLanes, AllAgreeWhichCallsFailWhateverTheMoment) {
  constexpr std::size_t kCalls = 12;
  for (int attempt = 0; attempt < (kSanitized ? 24 : 60); ++attempt) {
    std::array<std::array<bool, kCalls>, kRanks> good{};
    const auto place = places()[static_cast<std::size_t>(attempt % 2)];
    run_thread_ranks(
        kRanks,
        [&](const Job& job) {
          const auto rank = static_cast<std::size_t>(job.rank());
          const Group group(job, "world", {.lanes = 1 + attempt % 4});
          group.barrier();
          std::array<float, kCalls> x{};
          std::vector<Work> works;
          for (std::size_t i = 0; i < kCalls; ++i) {
            if (rank == 2 && i == static_cast<std::size_t>(attempt) % kCalls) {
              for (int turn = 0; turn < attempt * 20; ++turn) std::this_thread::yield();
              group.fail("no more");
            }
            try {
              works.push_back(
                  group.start().all_reduce(view(&x[i], 1), view(&x[i], 1), Reduction::sum));
            } catch (const PeerFailed&) {
              break;
            }
          }
          for (std::size_t i = 0; i < works.size(); ++i) {
            good[rank][i] = text_of<PeerFailed>([&] { works[i].wait(); }).empty();
          }
        },
        place);
    for (const auto& of_rank : good) EXPECT_EQ(of_rank, good[0]) << "attempt " << attempt;
  }
}

// promise: group#lanes-several-calls-at-a-time, group.h#lanes
TEST(GroupOptions, LanesThatDifferAreAMismatchThatNamesTwo) {
  for (const auto& place : places()) {
    run_thread_ranks(
        kRanks,
        [](const Job& job) {
          EXPECT_EQ(text_of<Mismatch>([&] {
                      const Group group(job, "world", {.lanes = job.rank() == 1 ? 4 : 2});
                    }),
                    "members of group \"world\" disagree on its lanes (GroupOptions::lanes): rank "
                    "0: 2; rank 1: 4");
          const Group world(job);
          EXPECT_EQ(text_of<Mismatch>([&] {
                      static_cast<void>(
                          world.split(job.rank() % 2, "half", {.lanes = 1 + job.rank() / 2}));
                    }),
                    job.rank() == 1 ? ""
                                    : "members of group \"half\" disagree on its lanes "
                                      "(GroupOptions::lanes): rank 0: 1; rank 2: 2");
          expect_fresh_group_works(job, {0, 1, 2});
        },
        place);
  }
}

// promise: group#lanes-several-calls-at-a-time
TEST(GroupOptions, AreTwoLanesByDefault) {
  EXPECT_EQ(GroupOptions{}.lanes, 2);
  run_thread_ranks(2, [](const Job& job) {
    const Group one = job.rank() == 0 ? Group(job) : Group(job, "world", {.lanes = 2});
    one.barrier();
    one.split(0, "all").barrier();
  });
}

// promise: group#lanes-several-calls-at-a-time, group.h#lanes
TEST(GroupOptions, NumbersOfLanesThatMakeNoSenseAreRefused) {
  run_thread_ranks(2, [](const Job& job) {
    for (const int lanes : {-1, 0, kMaxGroupLanes + 1}) {
      EXPECT_EQ(
          text_of<InvalidArgument>([&] { const Group group(job, "world", {.lanes = lanes}); }),
          "group \"world\" of ranks [0 1]: " + std::to_string(lanes) + " lanes; it has 1 to 8");
    }
    const Group most(job, "most", {.lanes = kMaxGroupLanes});
    int one = 1;
    for (int call = 0; call < 3 * kMaxGroupLanes; ++call) {
      one = 1;
      most.all_reduce(view(&one, 1), Reduction::sum);
      EXPECT_EQ(one, 2);
    }
  });
}

}  // namespace
}  // namespace tutti::test
