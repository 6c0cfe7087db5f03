#pragma once

// The memory of one host that the workers of other hosts write to as well: by the messages that its
// broker makes effective here (stores.h). A block is mapped for as long as a worker of this host
// holds it.
//
// Threads: one at a time. Failure: a store to a block that nobody here holds, or beyond its end, is
// skipped: its group has no member here any more.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/system.h"
#include "job/hosts/stores.h"
#include "job/wire/board.h"
#include "job/wire/rank_set.h"

namespace tutti {

/// The block of the job's board.
inline constexpr std::uint64_t kBoardBlock = 1;

class HostMemory {
 public:
  /// `workers`: those of this host.
  HostMemory(std::shared_ptr<System> system, RankSet workers)
      : system_(std::move(system)), workers_(workers) {}

  /// A worker of this host holds the block. The descriptor may come with any of them, and is empty
  /// with the others.
  void hold(int rank, std::uint64_t block, const FileDescriptor& file, std::size_t bytes);
  void let_go(int rank, std::uint64_t block);
  /// The worker has ended, here or on another host: it holds nothing, and the board tells. What it
  /// alone held stays known while others of this host may be about to hold it: they may have it
  /// from this worker, and come without the descriptor.
  /// `cut_off`: the hub is lost, and with it all other hosts.
  void end(int rank, bool cut_off = false);
  /// Makes a message effective. `is_own`: its writer is on this host.
  void apply(std::string_view message, bool is_own);
  /// Wakes who waits for what messages have stored: once for all that came together.
  void wake();

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    RankSet holders;
    RankSet had;  ///< who has held it at any time
  };
  std::byte* address(BlockPlace place, std::size_t bytes);
  bool apply(const StoreItem& item, std::string_view payload, bool is_own);
  Board* board();

  std::shared_ptr<System> system_;
  std::map<std::uint64_t, Block> blocks_;
  bool has_stored_ = false;  ///< since wake()
  RankSet workers_;
  RankSet ended_;
  bool is_cut_off_ = false;
};

}  // namespace tutti
