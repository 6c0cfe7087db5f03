#pragma once

// One flat block of unnamed shared memory: made by one worker, passed to others by descriptor,
// mapped by each. Nothing has a name in a file system, so nothing is left behind, however processes
// end.
//
// Threads: a value; the memory itself is synchronised by its users. Failure: InvalidArgument when a
// passed file has another size than agreed; whatever System throws.

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/system.h"

namespace tutti {

/// Bytes of the smallest page; blocks in arenas start on one.
inline constexpr std::size_t kPageBytes = 4096;

/// `bytes` as a multiple of `unit`, upwards.
constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept {
  return (bytes + unit - 1) / unit * unit;
}

class Arena {
 public:
  Arena() = default;
  /// A new one, zero-filled, of at least one page. No page is touched.
  static Arena create(System& system, std::string_view name, std::size_t bytes);
  /// One that another worker made; `bytes` as given to create() there.
  static Arena open(System& system, FileDescriptor file, std::size_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  /// Keeps the mapping alive.
  const std::shared_ptr<std::byte>& memory() const { return memory_; }
  /// A descriptor to be passed to another worker.
  FileDescriptor descriptor() const { return file_.duplicate(); }
  /// Closes the descriptor once all have it; the mapping stays.
  void close_descriptor() { file_.reset(); }

 private:
  Arena(System& system, FileDescriptor file, std::size_t bytes);
  FileDescriptor file_;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> memory_;
};

/// First touch: makes the calling worker the one whose memory backs these pages. Only before
/// another worker may write there.
void touch_pages(std::byte* begin, std::size_t bytes) noexcept;

}  // namespace tutti
