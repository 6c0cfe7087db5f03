// Where a worker's tables lie.

#include "sync/nodes/step_board.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "sync/own_board.h"

namespace tutti::test {
namespace {

TEST(StepBoard, EachTableHasRoomOfItsOwn) {
  for (const std::size_t parameters : {1, 63, 64, 65}) {
    const OwnBoard own(parameters);
    const StepBoard& board = *own;
    std::vector<std::span<std::byte>> tables;
    const auto add = [&](auto* at, std::size_t count) {
      tables.push_back({reinterpret_cast<std::byte*>(at), count * sizeof *at});
    };
    add(&board.header(), 1);
    add(&board.bucket_ready(0), parameters);
    add(board.digests().data(), board.digests().size());
    add(board.order().data(), parameters);
    for (int node = 0; node < kMaxSlots; ++node) {
      add(board.slot_table(node), parameters);
      add(board.weights(node), parameters);
    }
    add(board.sum_slots(), parameters);
    for (std::size_t k = 0; k < tables.size(); ++k) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tables[k].data()) % kCacheLine, 0U) << k;
      std::memset(tables[k].data(), static_cast<int>(k + 1), tables[k].size());
    }
    for (std::size_t k = 0; k < tables.size(); ++k) {
      EXPECT_TRUE(std::ranges::all_of(tables[k], [&](std::byte b) {
        return b == static_cast<std::byte>(k + 1);
      })) << k;
    }
  }
}

}  // namespace
}  // namespace tutti::test
