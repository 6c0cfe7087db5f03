// What of private memory passes through the shared pieces.

#include <algorithm>

#include <gtest/gtest.h>

#include "base/system.h"
#include "comm/local/transfer.h"

namespace tutti::test {
namespace {

// promise: group#two-ways
TEST(Staging, OfABroadcastIsTheRootsAlone) {
  constexpr std::int64_t kBytes = 100'000;
  constexpr int kMembers = 3;
  const auto system = host_system();
  const ControlArena control(Arena::create(*system, "control", ControlArena::bytes(kMembers)),
                             kMembers);
  std::vector<std::byte> data(kBytes, std::byte{7});
  for (int rank = 0; rank < kMembers; ++rank) {
    const Membership members{rank, kMembers, FoldProgram::canonical(kMembers)};
    Operation operation;
    operation.kind = OperationKind::broadcast;
    operation.root = 1;
    operation.in = {data.data(), kBytes, DType::uint8};
    operation.out = {data.data(), kBytes, DType::uint8};
    Transfer transfer;
    transfer.begin(operation, members, control, 1);
    transfer.assume_staging();
    transfer.stage(0, 0);
    const std::byte* const staged = control.staging(rank, 0);
    EXPECT_EQ(std::count(staged, staged + kBytes, std::byte{7}), rank == 1 ? kBytes : 0) << rank;
  }
}

// A member folds its own slice from its own memory. Slices are cut where cache lines are.
// promise: group#two-ways
TEST(Staging, OfAnAllReduceLeavesOutTheOwnSliceOfWholeSixtyFourElements) {
  constexpr std::int64_t kCount = 10'007;
  constexpr int kMembers = 3;
  const auto system = host_system();
  const ControlArena control(Arena::create(*system, "control", ControlArena::bytes(kMembers)),
                             kMembers);
  std::vector<std::int32_t> data(kCount, 7);
  std::int64_t covered = 0;
  for (int rank = 0; rank < kMembers; ++rank) {
    const Membership members{rank, kMembers, FoldProgram::canonical(kMembers)};
    Operation operation;
    operation.kind = OperationKind::all_reduce;
    operation.in = {data.data(), kCount, DType::int32};
    operation.out = {data.data(), kCount, DType::int32};
    Transfer transfer;
    transfer.begin(operation, members, control, 1);
    transfer.assume_staging();
    transfer.stage(0, 0);
    const auto* const staged = reinterpret_cast<const std::int32_t*>(control.staging(rank, 0));
    const auto* const begin = std::find(staged, staged + kCount, 0);
    const auto* const end = std::find(begin, staged + kCount, 7);
    EXPECT_EQ(begin - staged, covered) << rank;
    EXPECT_EQ((begin - staged) % 64, 0) << rank;
    EXPECT_GT(end - begin, kCount / kMembers - 64) << rank;
    EXPECT_EQ(std::count(end, staged + kCount, 7), staged + kCount - end) << rank;
    covered = end - staged;
  }
  EXPECT_EQ(covered, kCount);
}

}  // namespace
}  // namespace tutti::test
