#pragma once

// Stores to memory that exists once per host, as a message: what a worker writes into its own
// host's memory is written into that of the others by their brokers.
//
// A block is memory that all workers of a job or group know by a number, at the same offsets on
// every host. Values that readers look at only after a word has told them to are *data*: the writer
// has put them into its own host's block already. A *word* is an atomic that others wait for; it is
// stored on all hosts by the message, on the writer's too, unless it is *early* there.
//
// Threads: one at a time per object. Failure: a message that makes no sense is skipped.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// An address in a block.
struct BlockPlace {
  std::uint64_t block = 0;
  std::uint64_t offset = 0;
};

/// One store of a message. In the message its payload follows, padded to 8 bytes.
struct StoreItem {
  enum Kind : std::uint32_t {
    data = 1,     ///< bytes; not on the writer's host
    word,         ///< an atomic of 4 or 8 bytes
    early_word,   ///< the same; the writer has stored it on its own host
    early_bytes,  ///< SharedBytes, the version first; the writer has written them on its own host
    early_time,   ///< an atomic count of ns of Clock: `value` ns from now on, or 0
    exchange      ///< an atomic, if it is `expected`; else the rest of the message is skipped
  };
  std::uint32_t kind = 0;
  std::uint32_t bytes = 0;  ///< of the payload, or of the atomic
  BlockPlace to;
  std::uint64_t value = 0;     ///< of an atomic; of shared bytes their capacity
  std::uint64_t expected = 0;  ///< of an exchange
};

/// Builds a message: stores take effect in the order in which they are added.
class StoreMessage {
 public:
  void data(BlockPlace to, const void* from, std::size_t bytes);
  void word(BlockPlace to, std::uint64_t value, std::size_t bytes, bool early = false);
  /// Clocks differ between hosts: the time arrives as one from now on. 0: none.
  void time(BlockPlace to, std::int64_t ns_from_now);
  /// Nobody waits for these: they wake no one.
  void shared_bytes(BlockPlace to, std::size_t capacity, std::string_view bytes);
  void exchange(BlockPlace to, std::uint64_t expected, std::uint64_t desired, std::size_t bytes);
  bool empty() const { return message_.empty(); }
  std::size_t size() const { return message_.size(); }
  std::string take();

 private:
  void add(const StoreItem& item, const void* payload, std::size_t bytes);
  std::string message_;
};

/// Reads a message, item by item.
class StoreReader {
 public:
  explicit StoreReader(std::string_view message) : rest_(message) {}
  /// False at the end, or where the rest is no item.
  bool next();
  const StoreItem& item() const { return item_; }
  std::string_view payload() const { return payload_; }

 private:
  std::string_view rest_;
  StoreItem item_;
  std::string_view payload_;
};

}  // namespace tutti
