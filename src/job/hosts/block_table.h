#pragma once

// The memory of this worker that exists once per host (stores.h), by address.
//
// Threads: any.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/file_descriptor.h"
#include "job/hosts/stores.h"
#include "job/wire/rendezvous.h"

namespace tutti {

class BlockTable {
 public:
  explicit BlockTable(std::shared_ptr<Rendezvous> rendezvous)
      : rendezvous_(std::move(rendezvous)) {}

  /// Holds the block, which is mapped here at `base`, for as long as the result lives. `file` is
  /// its memory, on one worker of each host; empty on the others.
  [[nodiscard]] std::shared_ptr<void> hold(std::uint64_t block, const std::byte* base,
                                           std::size_t bytes, const FileDescriptor& file);
  /// Where an address lies; nothing where no other host knows it.
  std::optional<BlockPlace> place_of(const void* at) const;

 private:
  struct Block {
    std::uint64_t number;
    std::size_t bytes;
  };
  class Held;
  std::shared_ptr<Rendezvous> rendezvous_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;  ///< by where they begin
};

}  // namespace tutti
