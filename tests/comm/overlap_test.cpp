// Calls under way whose memory overlaps: what one of them writes, no other may touch.

#include <gmock/gmock.h>

#include <functional>
#include <thread>

#include "comm/collective_cases.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CollectiveOptions kFirst{.label = "first"};
constexpr CollectiveOptions kSecond{.label = "second"};

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

/// Three members, each with 90 elements of 1.
void on_group(int lanes, const std::function<void(const Group&, Values<float>&)>& body) {
  run_thread_ranks(3, [&](const Job& job) {
    const Group group(job, "world", {.lanes = lanes});
    Values<float> x(90);
    std::fill_n(x.data(), 90, 1.0f);
    body(group, x);
  });
}

View part(Values<float>& x, std::int64_t first, std::int64_t count) {
  return {x.data() + first, count, DType::float32};
}

// promise: group#lanes-several-calls-at-a-time, group.h#Work
TEST(OverlappingCalls, AreRefusedWithTheNamesOfBothAndTheGroupWorksOn) {
  for (const int lanes : {1, 2, 3}) {
    on_group(lanes, [](const Group& group, Values<float>& x) {
      Work first = group.start().all_reduce(part(x, 0, 30), part(x, 0, 30), Reduction::sum, kFirst);
      Work apart = group.start().all_reduce(part(x, 30, 10), part(x, 30, 10), Reduction::sum);
      const auto text = [&](View in, View out) {
        return refusal(
            [&] { const Work work = group.start().all_reduce(in, out, Reduction::max, kSecond); });
      };
      const auto both =
          AllOf(HasSubstr("all-reduce max float32[10] \"second\", call 3 of group \"world\""),
                HasSubstr("all-reduce sum float32[30] \"first\", call 1 of group \"world\""),
                HasSubstr("wait for that one first"));
      EXPECT_THAT(text(part(x, 29, 10), part(x, 60, 10)),
                  AllOf(both, HasSubstr("reads memory that a call under way writes")));
      EXPECT_THAT(text(part(x, 60, 10), part(x, 0, 10)),
                  AllOf(both, HasSubstr("writes memory that a call under way writes")));
      EXPECT_THAT(refusal([&] { group.all_reduce(part(x, 20, 10), Reduction::max, kSecond); }),
                  both)
          << "a blocking call is one, too";
      first.wait();
      EXPECT_THAT(text(part(x, 0, 10), part(x, 0, 10)), IsEmpty());
      apart.wait();
      EXPECT_EQ(x[0], 3);
      EXPECT_EQ(x[35], 3);
    });
  }
}

// promise: group#lanes-several-calls-at-a-time, group.h#Work
TEST(OverlappingCalls, ThatReadTheSameAreFine) {
  for (const int lanes : {1, 2}) {
    on_group(lanes, [](const Group& group, Values<float>& x) {
      Work first = group.start().all_reduce(part(x, 0, 10), part(x, 40, 10), Reduction::sum);
      Work second = group.start().all_reduce(part(x, 0, 10), part(x, 50, 10), Reduction::max);
      EXPECT_THAT(refusal([&] {
                    const Work third =
                        group.start().all_reduce(part(x, 60, 10), part(x, 5, 10), Reduction::sum);
                  }),
                  HasSubstr("writes memory that a call under way reads"));
      first.wait();
      second.wait();
      EXPECT_EQ(x[40], 3);
      EXPECT_EQ(x[50], 1);
    });
  }
}

/// What only the root gives, or takes, leaves the memory of the other members free.
// promise: group#lanes-several-calls-at-a-time
TEST(OverlappingCalls, AreAboutWhatAMemberReadsAndWrites) {
  on_group(2, [](const Group& group, Values<float>& x) {
    const bool is_root = group.rank() == 0;
    // The root reads; the others write.
    Work sent = group.start().broadcast(part(x, 0, 10), 0, kFirst);
    EXPECT_EQ(refusal([&] {
                const Work reads = group.start().all_reduce(
                    part(x, is_root ? 0 : 80, 10), part(x, 10, 10), Reduction::sum, kSecond);
              }),
              "");
    EXPECT_THAT(refusal([&] { group.broadcast(part(x, 9, 1), 1, kSecond); }),
                HasSubstr(is_root             ? "writes memory that a call under way reads"
                          : group.rank() == 1 ? "reads memory that a call under way writes"
                                              : "writes memory that a call under way writes"));
    sent.wait();
  });
}

/// What counts is what the program has waited for, not what happens to be complete.
// promise: group#lanes-several-calls-at-a-time
TEST(OverlappingCalls, AreThoseThatNobodyHasWaitedFor) {
  on_group(2, [](const Group& group, Values<float>& x) {
    Work polled = group.start().all_reduce(part(x, 0, 10), part(x, 0, 10), Reduction::sum);
    while (!polled.done()) std::this_thread::yield();
    Work first = group.start().all_reduce(part(x, 0, 10), part(x, 0, 10), Reduction::max, kFirst);
    group.all_reduce(part(x, 10, 10), Reduction::sum);  // on the other lane
    EXPECT_THAT(refusal([&] { group.all_reduce(part(x, 0, 10), Reduction::sum); }),
                HasSubstr("\"first\""));
    group.barrier();  // over when all calls before it are
    group.all_reduce(part(x, 0, 10), Reduction::max);
    // A later one of its lane is waited for, and with it those before.
    Work old = group.start().all_reduce(part(x, 0, 10), part(x, 0, 10), Reduction::max);
    group.all_reduce(part(x, 20, 1), Reduction::sum);
    group.all_reduce(part(x, 21, 1), Reduction::sum);
    group.all_reduce(part(x, 0, 10), Reduction::max);
    EXPECT_EQ(x[0], 3);
  });
}

// promise: group#lanes-several-calls-at-a-time
TEST(OverlappingCalls, OfAnEighthOneTheOldestOfTheLaneIsOver) {
  on_group(1, [](const Group& group, Values<float>& x) {
    std::vector<Work> works;
    for (std::int64_t i = 0; i < 7; ++i) {
      works.push_back(group.start().all_reduce(part(x, i, 1), part(x, i, 1), Reduction::sum));
    }
    EXPECT_THAT(refusal([&] { group.all_reduce(part(x, 1, 1), Reduction::sum); }),
                HasSubstr("call 2 of group"));
    group.all_reduce(part(x, 0, 1), Reduction::sum);
    EXPECT_EQ(x[0], 9);
  });
}

// promise: group#lanes-several-calls-at-a-time
TEST(OverlappingCalls, InAGroupThatHasEndedAreWhatEndedIt) {
  on_group(2, [](const Group& group, Values<float>& x) {
    Work first = group.start().all_reduce(part(x, 0, 10), part(x, 0, 10), Reduction::sum,
                                          group.rank() == 0 ? kFirst : kSecond);
    EXPECT_THROW(first.wait(), Mismatch);
    EXPECT_THROW(group.all_reduce(part(x, 0, 10), Reduction::sum), Mismatch);
  });
}

}  // namespace
}  // namespace tutti::test
