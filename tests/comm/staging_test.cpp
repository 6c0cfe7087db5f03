// What of private memory passes through the shared pieces.

#include <algorithm>

#include <gtest/gtest.h>

#include "base/system.h"
#include "comm/local/transfer.h"

namespace tutti::test {
namespace {

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
    transfer.begin(operation, members, control);
    transfer.assume_staging();
    transfer.stage(0, 0);
    const std::byte* const staged = control.staging(rank, 0);
    EXPECT_EQ(std::count(staged, staged + kBytes, std::byte{7}), rank == 1 ? kBytes : 0) << rank;
  }
}

}  // namespace
}  // namespace tutti::test
