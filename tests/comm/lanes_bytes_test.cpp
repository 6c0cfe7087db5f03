// The results of calls that are under way at the same time on the lanes of a group, against a
// model.

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>

#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "comm/lengths.h"
#include "comm/local/control_arena.h"
#include "comm/on_hosts.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all };

/// One call, the same on all ranks, with what each gives and what each must have in the end.
struct DrawnCall {
  Kind kind;
  int root = 0;
  std::vector<Values<float>> given;
  std::vector<Values<float>> wanted;
};

DrawnCall draw_call(int ranks, std::mt19937_64& random) {
  constexpr std::array<std::int64_t, 9> kSizes = {0, 1, 5, 63, 64, 900, 9'000, 30'000, kLarge};
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  DrawnCall call{.kind = static_cast<Kind>(below(5)),
                 .root = static_cast<int>(below(static_cast<std::size_t>(ranks))),
                 .given = {},
                 .wanted = {}};
  const std::int64_t size = kSizes[below(kSizes.size())];
  const bool has_parts = call.kind == Kind::reduce_scatter || call.kind == Kind::all_to_all;
  call.given = random_inputs<float>(ranks, has_parts ? size * ranks : size, random() % 100'000);
  const auto given = [&](int rank) { return call.given[static_cast<std::size_t>(rank)].data(); };
  for (int rank = 0; rank < ranks; ++rank) {
    const bool joins = call.kind == Kind::all_gather || call.kind == Kind::all_to_all;
    Values<float> wanted(joins ? size * ranks : size);
    switch (call.kind) {
      case Kind::all_reduce:
        wanted = reduced(call.given, Reduction::sum);
        break;
      case Kind::reduce_scatter: {
        const auto whole = reduced(call.given, Reduction::sum);
        std::copy_n(whole.data() + rank * size, size, wanted.data());
        break;
      }
      case Kind::broadcast:
        std::copy_n(given(call.root), size, wanted.data());
        break;
      case Kind::all_gather:
        for (int r = 0; r < ranks; ++r) std::copy_n(given(r), size, wanted.data() + r * size);
        break;
      case Kind::all_to_all:
        for (int r = 0; r < ranks; ++r) {
          std::copy_n(given(r) + rank * size, size, wanted.data() + r * size);
        }
        break;
    }
    call.wanted.push_back(std::move(wanted));
  }
  return call;
}

Work start(const Group& group, const DrawnCall& call, Values<float>& out) {
  const auto& in = call.given[static_cast<std::size_t>(group.rank())];
  switch (call.kind) {
    case Kind::all_reduce:
      return group.start().all_reduce(view(in), view(out), Reduction::sum);
    case Kind::reduce_scatter:
      return group.start().reduce_scatter(view(in), view(out), Reduction::sum);
    case Kind::all_gather:
      return group.start().all_gather(view(in), view(out));
    case Kind::all_to_all:
      return group.start().all_to_all(view(in), view(out));
    case Kind::broadcast:
      break;
  }
  if (group.rank() == call.root) std::copy_n(in.data(), in.count(), out.data());
  return group.start().broadcast(view(out), call.root);
}

/// Lets others run for a while of the rank's own.
void dawdle(std::mt19937_64& random) {
  for (std::uint64_t turns = random() % 64 < 8 ? random() % 300 : 0; turns > 0; --turns) {
    std::this_thread::yield();
  }
}

struct Crew {
  int ranks;
  std::vector<RankSet> hosts;  ///< empty: one
};
ThreadOptions options_of(const Crew& crew) {
  return crew.hosts.empty() ? ThreadOptions{} : on(crew.hosts);
}

class LanesOf : public ::testing::TestWithParam<Crew> {};
INSTANTIATE_TEST_SUITE_P(Crews, LanesOf,
                         ::testing::Values(Crew{1, {}}, Crew{2, {}}, Crew{3, {}}, Crew{5, {}},
                                           Crew{2, {{0}, {1}}}, Crew{3, {{0, 1}, {2}}},
                                           Crew{5, {{0, 1}, {2, 3, 4}}}),
                         [](const auto& of) {
                           return std::to_string(of.param.ranks) + "on" +
                                  std::to_string(std::max<std::size_t>(of.param.hosts.size(), 1));
                         });

/// Every rank starts the same calls with delays of its own, waits in an order of its own, and
/// waits for some at once.
// promise: group#lanes-several-calls-at-a-time, group.h#Group
TEST_P(LanesOf, GiveTheSameBytesHoweverManyThereAreWhateverTheArrival) {
  constexpr std::size_t kCalls = kSanitized ? 20 : 40;
  const Crew& crew = GetParam();
  std::mt19937_64 random(static_cast<std::uint64_t>(crew.ranks) + 10 * crew.hosts.size());
  std::vector<DrawnCall> calls;
  for (std::size_t i = 0; i < kCalls; ++i) calls.push_back(draw_call(crew.ranks, random));
  for (const int lanes : {1, 2, 4}) {
    run_thread_ranks(
        crew.ranks,
        [&](const Job& job) {
          const Group group(job, "world", {.lanes = lanes});
          const auto own = static_cast<std::size_t>(job.rank());
          std::mt19937_64 mine(own * 7 + static_cast<std::uint64_t>(lanes));
          std::vector<Values<float>> out;
          std::vector<Work> works;
          for (const DrawnCall& call : calls) {
            dawdle(mine);
            out.emplace_back(call.wanted[own].count());
            works.push_back(start(group, call, out.back()));
            if (mine() % 5 == 0) works.back().wait();
          }
          EXPECT_EQ(group.state()->calls(), kCalls);
          std::vector<std::size_t> order(kCalls);
          for (std::size_t i = 0; i < kCalls; ++i) order[i] = i;
          std::shuffle(order.begin(), order.end(), mine);
          for (const std::size_t i : order) {
            dawdle(mine);
            works[i].wait();
            ASSERT_TRUE(works[i].done());
            const auto& wanted = calls[i].wanted[own];
            ASSERT_TRUE(same_values(out[i].data(), wanted.data(), wanted.count()))
                << "call " << i + 1 << ", " << lanes << " lanes";
          }
        },
        options_of(crew));
  }
}

}  // namespace
}  // namespace tutti::test
