#include "job/hosts/block_table.h"

#include <iterator>
#include <utility>

namespace tutti {

class BlockTable::Held {
 public:
  Held(BlockTable& table, std::uint64_t block, const std::byte* base)
      : table_(table), block_(block), base_(base) {}
  ~Held() {
    {
      const std::lock_guard lock(table_.mutex_);
      table_.blocks_.erase(base_);
    }
    table_.rendezvous_->let_go_block(block_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  BlockTable& table_;
  std::uint64_t block_;
  const std::byte* base_;
};

std::shared_ptr<void> BlockTable::hold(std::uint64_t block, const std::byte* base,
                                       std::size_t bytes, const FileDescriptor& file) {
  rendezvous_->hold_block(block, file, bytes);
  {
    const std::lock_guard lock(mutex_);
    blocks_[base] = {block, bytes};
  }
  return std::make_shared<Held>(*this, block, base);
}

std::optional<BlockPlace> BlockTable::place_of(const void* at) const {
  const auto* const address = static_cast<const std::byte*>(at);
  const std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return {};
  const auto& [base, block] = *std::prev(after);
  if (address >= base + block.bytes) return {};
  return BlockPlace{block.number, static_cast<std::uint64_t>(address - base)};
}

}  // namespace tutti
