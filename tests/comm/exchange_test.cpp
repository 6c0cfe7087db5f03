// What goes from each member to each other one, or between the root and each: gather, scatter,
// all-to-all, reduce-scatter of unequal parts.

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/lengths.h"
#include "comm/link/link_engine.h"
#include "comm/local/control_arena.h"
#include "comm/on_hosts.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using Counts = std::vector<std::int64_t>;

std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::int64_t before(const Counts& counts, int which) {
  return std::accumulate(counts.begin(), counts.begin() + which, std::int64_t{0});
}

/// Elements from one member to another: none, few, many, and more than a chunk among them.
std::int64_t pair_count(int giver, int taker, std::int64_t scale) {
  return (giver * 7 + taker * 3) % 4 * scale / 2 + (giver == taker ? 1 : 0);
}
Counts given_by(int giver, int size, std::int64_t scale) {
  Counts counts;
  for (int taker = 0; taker < size; ++taker) counts.push_back(pair_count(giver, taker, scale));
  return counts;
}
Counts taken_by(int taker, int size, std::int64_t scale) {
  Counts counts;
  for (int giver = 0; giver < size; ++giver) counts.push_back(pair_count(giver, taker, scale));
  return counts;
}
/// Parts of unequal sizes, the second of them empty.
Counts parts(int size, std::int64_t scale) {
  Counts counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(rank == 1 ? 0 : scale * (rank + 2) / 3);
  return counts;
}

/// Around the border of small operations, and above a chunk.
std::vector<std::int64_t> scales(int ranks) {
  const auto small = static_cast<std::int64_t>(small_bytes(ranks) / sizeof(float));
  return {0, 1, 65, small / ranks, small, kChunk / ranks + 3, kChunk + 70};
}

using Body = std::function<void(const Group&, Room<float>&, const Placement&, std::int64_t scale,
                                const std::string& where)>;

/// Ranks on one host in every placement of memory, then on several hosts with a link and without.
class Exchange : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::int64_t most() const { return scales(ranks()).back() * 2 * (ranks() + 1); }
  void for_each_case(const Body& body) const {
    run_thread_ranks(ranks(), [&](const Job& job) {
      const Group group(job);
      Room<float> room(group, most());
      for (std::size_t p = 0; p < placement_names().size(); ++p) {
        for (const auto scale : scales(ranks())) {
          body(group, room, placement(p, group.rank()), scale,
               placement_names()[p] + ", scale " + std::to_string(scale));
        }
      }
    });
    for (const auto& hosts : layouts()) {
      for (const bool over_tcp : {false, true}) {
        run_thread_ranks(
            ranks(),
            [&](const Job& job) {
              if (over_tcp && job.rank() == 0) set_link_engine({});
              const Group group(job);
              group.barrier();
              Room<float> room(group, most());
              for (const auto scale : scales(ranks())) {
                body(group, room, placement(0, group.rank()), scale,
                     std::to_string(hosts.size()) + " hosts, scale " + std::to_string(scale));
              }
            },
            on(hosts));
      }
    }
  }

 private:
  std::vector<std::vector<RankSet>> layouts() const {
    if (ranks() == 3) return {{{0, 1}, {2}}};
    if (ranks() == 5 && !kSanitized) return {{{0, 3}, {1, 2}, {4}}};
    return {};
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Exchange, ::testing::Values(1, 2, 3, 5));

Placement apart(Placement at) {
  at.in_place = false;
  return at;
}

float value_of(int giver, int taker, std::int64_t i) {
  return static_cast<float>(giver * 1000 + taker * 100) + static_cast<float>(i % 97);
}

// promise: group.h#all_to_all
TEST_P(Exchange, AllToAllGivesEachItsPart) {
  for_each_case([&](const Group& group, Room<float>& room, const Placement& at, std::int64_t scale,
                    const std::string& where) {
    const int self = group.rank();
    float* const in = room.in(at);
    float* const out = room.out(apart(at));
    for (int taker = 0; taker < group.size(); ++taker) {
      for (std::int64_t i = 0; i < scale; ++i) in[taker * scale + i] = value_of(self, taker, i);
    }
    group.all_to_all(view(in, scale * group.size()), view(out, scale * group.size()));
    for (int giver = 0; giver < group.size(); ++giver) {
      for (std::int64_t i = 0; i < scale; ++i) {
        ASSERT_EQ(out[giver * scale + i], value_of(giver, self, i)) << where << ", from " << giver;
      }
    }
  });
}

// promise: group#parts-of-unequal-sizes, group.h#all_to_all_variable
TEST_P(Exchange, AllToAllOfUnequalPartsGivesEachItsOwn) {
  for_each_case([&](const Group& group, Room<float>& room, const Placement& at, std::int64_t scale,
                    const std::string& where) {
    const int self = group.rank();
    const Counts given = given_by(self, group.size(), scale);
    const Counts taken = taken_by(self, group.size(), scale);
    float* const in = room.in(at);
    float* const out = room.out(apart(at));
    std::int64_t place = 0;
    for (int taker = 0; taker < group.size(); ++taker) {
      for (std::int64_t i = 0; i < given[static_cast<std::size_t>(taker)]; ++i) {
        in[place++] = value_of(self, taker, i);
      }
    }
    group.all_to_all_variable(view(in, sum_of(given)), given, view(out, sum_of(taken)), taken);
    place = 0;
    for (int giver = 0; giver < group.size(); ++giver) {
      for (std::int64_t i = 0; i < taken[static_cast<std::size_t>(giver)]; ++i) {
        ASSERT_EQ(out[place++], value_of(giver, self, i)) << where << ", from " << giver;
      }
    }
  });
}

// promise: group#parts-of-unequal-sizes, group.h#gather, group.h#gather_variable
TEST_P(Exchange, GatherJoinsPartsForTheRootAlone) {
  for_each_case([&](const Group& group, Room<float>& room, const Placement& at, std::int64_t scale,
                    const std::string& where) {
    const int root = static_cast<int>(scale) % group.size();
    const Counts counts = parts(group.size(), scale);
    for (const bool variable : {false, true}) {
      const Counts sizes =
          variable ? counts : Counts(static_cast<std::size_t>(group.size()), scale);
      const std::int64_t own = sizes[static_cast<std::size_t>(group.rank())];
      float* const out = room.out(at);
      float* const in = at.in_place ? out + before(sizes, group.rank()) : room.in(at);
      std::fill_n(out, sum_of(sizes), -1.0f);
      for (std::int64_t i = 0; i < own; ++i) in[i] = value_of(group.rank(), root, i);
      const View all = group.rank() == root ? view(out, sum_of(sizes)) : View{};
      if (variable) {
        group.gather_variable(view(in, own), all, counts, root);
      } else {
        group.gather(view(in, own), all, root);
      }
      std::int64_t place = 0;
      for (int giver = 0; giver < group.size(); ++giver) {
        for (std::int64_t i = 0; i < sizes[static_cast<std::size_t>(giver)]; ++i, ++place) {
          const bool is_own = at.in_place && giver == group.rank();
          ASSERT_EQ(out[place], group.rank() == root || is_own ? value_of(giver, root, i) : -1.0f)
              << where << ", from " << giver;
        }
      }
    }
  });
}

// promise: group#parts-of-unequal-sizes, group.h#scatter, group.h#scatter_variable
TEST_P(Exchange, ScatterGivesTheRootsPartToEach) {
  for_each_case([&](const Group& group, Room<float>& room, const Placement& at, std::int64_t scale,
                    const std::string& where) {
    const int root = static_cast<int>(scale + 1) % group.size();
    const bool is_root = group.rank() == root;
    const Counts counts = parts(group.size(), scale);
    for (const bool variable : {false, true}) {
      const Counts sizes =
          variable ? counts : Counts(static_cast<std::size_t>(group.size()), scale);
      const std::int64_t own = sizes[static_cast<std::size_t>(group.rank())];
      float* const in = room.in(at);
      float* const out = at.in_place ? in + before(sizes, group.rank()) : room.out(at);
      std::int64_t place = 0;
      for (int taker = 0; taker < group.size(); ++taker) {
        for (std::int64_t i = 0; i < sizes[static_cast<std::size_t>(taker)]; ++i) {
          in[place++] = is_root ? value_of(root, taker, i) : -1.0f;
        }
      }
      const ConstView all = is_root ? view(in, place) : View{};
      if (variable) {
        group.scatter_variable(all, view(out, own), counts, root);
      } else {
        group.scatter(all, view(out, own), root);
      }
      for (std::int64_t i = 0; i < own; ++i) {
        ASSERT_EQ(out[i], value_of(root, group.rank(), i)) << where;
      }
    }
  });
}

// promise: group#parts-of-unequal-sizes, group.h#reduce_scatter_variable
TEST_P(Exchange, ReduceScatterOfUnequalPartsGivesTheTreesSums) {
  const auto inputs = random_inputs<float>(ranks(), most());
  const auto wanted = reduced(inputs, Reduction::sum);
  for_each_case([&](const Group& group, Room<float>& room, const Placement& at, std::int64_t scale,
                    const std::string& where) {
    const Counts counts = parts(group.size(), scale);
    const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
    const std::int64_t begin = before(counts, group.rank());
    float* const in = room.in(at);
    float* const out = at.in_place ? in + begin : room.out(at);
    std::copy_n(inputs[static_cast<std::size_t>(group.rank())].data(), sum_of(counts), in);
    group.reduce_scatter_variable(view(in, sum_of(counts)), view(out, own), counts, Reduction::sum);
    ASSERT_TRUE(same_values(out, wanted.data() + begin, own)) << where;
  });
}

// promise: group#between-hosts
TEST(Exchanges, EachKindMovesBetweenHostsWhatItsReceiversNeed) {
  const std::vector<RankSet> hosts = {{0, 1}, {2, 3}};
  constexpr std::int64_t kPart = kChunk / 4;  // a whole chunk, with the parts of all
  constexpr auto kBytes = static_cast<std::uint64_t>(kPart) * sizeof(float);
  const auto counted = [&](const std::function<void(const Group&, float*, float*)>& call) {
    return bytes_moved(hosts, [&](const Group& group) {
      Values<float> in(4 * kPart);
      Values<float> out(4 * kPart);
      call(group, in.data(), out.data());
    });
  };
  const auto exchanged = counted([](const Group& group, float* in, float* out) {
    group.all_to_all(view(in, 4 * kPart), view(out, 4 * kPart));
  });
  EXPECT_EQ(exchanged.from, (std::vector<std::uint64_t>{4 * kBytes, 4 * kBytes}));
  const auto gathered = counted([](const Group& group, float* in, float* out) {
    group.gather(view(in, kPart), view(out, 4 * kPart), 1);
  });
  EXPECT_EQ(gathered.from, (std::vector<std::uint64_t>{0, 2 * kBytes}));
  const auto scattered = counted([](const Group& group, float* in, float* out) {
    group.scatter(view(in, 4 * kPart), view(out, kPart), 3);
  });
  EXPECT_EQ(scattered.from, (std::vector<std::uint64_t>{0, 2 * kBytes}));
  const auto one_pair = counted([](const Group& group, float* in, float* out) {
    Counts given(4);
    Counts taken(4);
    if (group.rank() == 1) given[2] = 3 * kPart;
    if (group.rank() == 2) taken[1] = 3 * kPart;
    group.all_to_all_variable(view(in, sum_of(given)), given, view(out, sum_of(taken)), taken);
  });
  EXPECT_EQ(one_pair.from, (std::vector<std::uint64_t>{3 * kBytes, 0}));
  for (const auto& result : {exchanged, gathered, scattered, one_pair}) {
    EXPECT_LT(result.by_hub, 6000u);
  }
}

/// Every member says the same, those too that neither give nor take the part.
// promise: group#parts-of-unequal-sizes, group.h#all_to_all_variable
TEST(Exchanges, WhoTakesOtherThanIsGivenIsAMismatchThatNamesBoth) {
  for (const std::int64_t scale : {10, 200'000}) {
    for (const bool on_hosts : {false, true}) {
      const auto outcome = try_thread_ranks(
          4,
          [&](const Job& job) {
            const Group group(job);
            Values<float> in(12 * scale);
            Values<float> out(12 * scale);
            const Counts given(4, scale);
            Counts taken(4, scale);
            if (job.rank() == 2) taken[1] = scale - 3;
            group.all_to_all_variable(view(in.data(), sum_of(given)), given,
                                      view(out.data(), sum_of(taken)), taken, {.label = "tokens"});
          },
          on_hosts ? on({{0, 1}, {2, 3}}) : ThreadOptions{});
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]),
                     Mismatch);
        const auto n = std::to_string(scale);
        EXPECT_THAT(outcome.text(rank),
                    HasSubstr("disagree in call 1, all-to-all float32[" +
                              std::to_string(4 * scale) + "] as " + n + "+" + n + "+" + n + "+" +
                              n + " \"tokens\": rank 1 gives rank 2 " + n +
                              " elements, which takes " + std::to_string(scale - 3) + " from it"));
      }
    }
  }
}

TEST(Exchanges, EqualAndUnequalPartsDoNotMeet) {
  const auto outcome = try_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    Values<float> in(4);
    Values<float> out(4);
    if (job.rank() == 0) return group.all_to_all(view(in), view(out));
    group.all_to_all_variable(view(in), Counts{2, 2}, view(out), Counts{2, 2});
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(outcome.text(rank),
                HasSubstr("rank 0: all-to-all float32[4]; rank 1: all-to-all float32[4] as 2+2"));
  }
}

TEST(Exchanges, StartedCallsOfAllKindsAreUnderWayTogether) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kPart = kChunk / 2 + 5;
  for (const bool on_hosts : {false, true}) {
    run_thread_ranks(
        kRanks,
        [&](const Job& job) {
          const Group group(job);
          const int self = job.rank();
          Values<float> all(kRanks * kPart);
          for (std::int64_t i = 0; i < all.count(); ++i) {
            all[i] = value_of(self, static_cast<int>(i / kPart), i % kPart);
          }
          Values<float> exchanged(kRanks * kPart);
          Values<float> joined(kRanks * kPart);
          Values<float> mine(kPart);
          Values<float> last(kRanks * kPart);
          const Counts counts(kRanks, kPart);
          auto first = group.start().all_to_all(view(all), view(exchanged));
          auto second = group.start().gather(view(all.data(), kPart), view(joined), 1);
          auto third = group.start().scatter(view(all), view(mine), 2);
          auto fourth = group.start().all_to_all_variable(view(all), counts, view(last), counts);
          fourth.wait();
          for (Work* const work : {&third, &second, &first}) work->wait();
          for (int giver = 0; giver < kRanks; ++giver) {
            for (std::int64_t i = 0; i < kPart; i += 101) {
              ASSERT_EQ(exchanged[giver * kPart + i], value_of(giver, self, i));
              ASSERT_EQ(last[giver * kPart + i], value_of(giver, self, i));
              ASSERT_EQ(joined[giver * kPart + i], self == 1 ? value_of(giver, 0, i) : 0);
            }
          }
          for (std::int64_t i = 0; i < kPart; i += 101) ASSERT_EQ(mine[i], value_of(2, self, i));
        },
        on_hosts ? on({{0, 1}, {2}}) : ThreadOptions{});
  }
}

}  // namespace
}  // namespace tutti::test
