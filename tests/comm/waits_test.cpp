// How often a call waits for the others, as the table of docs/group.md says: they only start it, so
// that whoever waits once comes to the end of it, and whoever waits twice does not.

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "comm/collective_cases.h"
#include "comm/local/control_arena.h"
#include "comm/local/operation.h"
#include "support/thread_ranks.h"

namespace tutti::test {
namespace {

enum class Place { all_private, all_shared };

struct Call {
  OperationKind kind;
  std::int64_t count;  ///< floats that each member gives
  Place place = Place::all_shared;
  int root = 0;
  bool is_variable = false;  ///< each says what it gives to whom
};

Work start(const Group& group, const Call& call, float* x) {
  const auto n = call.count;
  const auto size = group.size();
  float* const out = x + n;
  switch (call.kind) {
    case OperationKind::all_reduce:
      return group.start().all_reduce(view(x, n), view(x, n), Reduction::sum);
    case OperationKind::reduce:
      return group.start().reduce(view(x, n), view(out, n), Reduction::sum, call.root);
    case OperationKind::reduce_scatter:
      return group.start().reduce_scatter(view(x, n / size * size), view(out, n / size),
                                          Reduction::sum);
    case OperationKind::all_gather:
      return group.start().all_gather(view(x, n), view(out, n * size));
    case OperationKind::gather:
      return group.start().gather(view(x, n), view(out, n * size), call.root);
    case OperationKind::broadcast:
      return group.start().broadcast(view(x, n), call.root);
    case OperationKind::scatter:
      return group.start().scatter(view(x, n / size * size), view(out, n / size), call.root);
    case OperationKind::all_to_all:
      if (call.is_variable) {
        const std::vector<std::int64_t> each(static_cast<std::size_t>(size), n / size);
        return group.start().all_to_all_variable(view(x, n / size * size), each,
                                                 view(out, n / size * size), each);
      }
      return group.start().all_to_all(view(x, n / size * size), view(out, n / size * size));
    case OperationKind::message:
    case OperationKind::barrier:
      break;
  }
  return group.start().barrier();
}

/// Whether rank 0 comes to the end of a call that the others have only started.
bool waits_once(const Call& call, int ranks = 2, int processors = 64) {
  std::atomic<int> started{0};
  std::atomic<bool> looked{false};
  bool ended = false;
  ThreadOptions options;
  options.processors = processors;
  run_thread_ranks(
      ranks,
      [&](const Job& job) {
        const Group group(job);
        const auto room = static_cast<std::size_t>(call.count * (ranks + 1) + 1);
        const SharedMemory memory = group.allocate(room * sizeof(float));
        std::vector<float> own(room, 1);
        float* const x =
            call.place == Place::all_private ? own.data() : reinterpret_cast<float*>(memory.data());
        const auto until = [](const auto& reached) {
          while (!reached()) std::this_thread::yield();
        };
        if (job.rank() != 0) {
          Work work = start(group, call, x);
          ++started;
          until([&] { return looked.load(); });
          work.wait();
        } else {
          until([&] { return started == ranks - 1; });
          Work work = start(group, call, x);
          for (int poll = 0; poll < 100; ++poll) ended = work.done();
          looked = true;
          work.wait();
        }
      },
      options);
  return ended;
}

constexpr auto kReducing = {OperationKind::all_reduce, OperationKind::reduce,
                            OperationKind::reduce_scatter};
constexpr auto kAll = {
    OperationKind::all_reduce, OperationKind::reduce,     OperationKind::reduce_scatter,
    OperationKind::all_gather, OperationKind::gather,     OperationKind::broadcast,
    OperationKind::scatter,    OperationKind::all_to_all, OperationKind::barrier};

// promise: group#two-ways, group#waiting-and-what-started-means
TEST(Waits, AreOneForSmallCallsOfEveryKind) {
  for (const OperationKind kind : kAll)
    for (const int ranks : {2, 3})
      for (const Place place : {Place::all_private, Place::all_shared})
        EXPECT_TRUE(waits_once({kind, 96, place}, ranks)) << static_cast<int>(kind);
}

// promise: errors#who-is-told-what-when-it-is-close, group#two-ways
TEST(Waits, AreTwoForLargeCallsButOfWhoOnlyReceives) {
  constexpr std::int64_t kLarge = 30'000;
  for (const int ranks : {2, 3}) {
    for (const OperationKind kind : kReducing)
      EXPECT_FALSE(waits_once({kind, kLarge}, ranks)) << static_cast<int>(kind);
    EXPECT_FALSE(waits_once({OperationKind::all_gather, kLarge}, ranks));
    EXPECT_FALSE(waits_once({OperationKind::broadcast, kLarge}, ranks));
    EXPECT_TRUE(waits_once({OperationKind::broadcast, kLarge, Place::all_shared, 1}, ranks));
    EXPECT_FALSE(waits_once({OperationKind::all_to_all, kLarge}, ranks));
    EXPECT_FALSE(waits_once({OperationKind::scatter, kLarge}, ranks));
    EXPECT_TRUE(waits_once({OperationKind::scatter, kLarge, Place::all_shared, 1}, ranks));
    EXPECT_TRUE(waits_once({OperationKind::gather, kLarge}, ranks));
    EXPECT_FALSE(waits_once({OperationKind::gather, kLarge, Place::all_shared, 1}, ranks));
  }
}

// Of what is staged others read a copy: the call is over as soon as the own result is there.
// promise: group#two-ways
TEST(Waits, OfStagedCallsOfOnePieceAreOneWhereNobodyCollects) {
  constexpr std::int64_t kOnePiece = 30'000;
  for (const OperationKind kind : {OperationKind::reduce_scatter, OperationKind::all_gather,
                                   OperationKind::gather, OperationKind::all_to_all})
    EXPECT_TRUE(waits_once({kind, kOnePiece, Place::all_private})) << static_cast<int>(kind);
  for (const OperationKind kind :
       {OperationKind::all_reduce, OperationKind::reduce, OperationKind::broadcast})
    EXPECT_FALSE(waits_once({kind, kOnePiece, Place::all_private})) << static_cast<int>(kind);
}

// promise: group#parts-of-unequal-sizes, group#two-ways
TEST(Waits, BecomeTwoAboveTheBorder) {
  // 8 KiB per member; of three 16 KiB / 3, of which 5460 bytes are whole floats.
  for (const auto& [ranks, most] : {std::pair{2, 2048}, std::pair{3, 1365}, std::pair{5, 819}}) {
    EXPECT_TRUE(waits_once({OperationKind::reduce, most}, ranks));
    EXPECT_FALSE(waits_once({OperationKind::reduce, most + 1}, ranks));
    EXPECT_TRUE(waits_once({OperationKind::all_gather, most}, ranks));
    EXPECT_FALSE(waits_once({OperationKind::all_gather, most + 1}, ranks));
    const std::int64_t in_parts = most / ranks * ranks;
    for (const bool is_variable : {false, true}) {
      Call call{OperationKind::all_to_all, in_parts};
      call.is_variable = is_variable;
      EXPECT_TRUE(waits_once(call, ranks));
      call.count += ranks;
      EXPECT_FALSE(waits_once(call, ranks));
    }
  }
  EXPECT_EQ(small_bytes(2), 8192U);
  EXPECT_EQ(small_bytes(16), 1024U);
  EXPECT_EQ(small_bytes(64), 1024U) << "never below 1 KiB";
}

// promise: group#two-ways
TEST(Waits, OfAnAllReduceInSharedMemoryBecomeTwoEarlierWithACoreForEach) {
  constexpr auto kKind = OperationKind::all_reduce;
  constexpr std::int64_t kTwoKibibytes = 512;
  for (const int ranks : {2, 3}) {
    EXPECT_TRUE(waits_once({kKind, kTwoKibibytes}, ranks, ranks));
    EXPECT_FALSE(waits_once({kKind, kTwoKibibytes + 1}, ranks, ranks));
    EXPECT_TRUE(waits_once({kKind, kTwoKibibytes + 1, Place::all_private}, ranks, ranks));
    EXPECT_TRUE(waits_once({kKind, kTwoKibibytes + 1}, ranks, ranks - 1));
  }
}

}  // namespace
}  // namespace tutti::test
