#pragma once

// The memory that torch's operations write to while a segment runs: of what outlives the segment,
// a batch norm's statistics or a counter, the second run has to leave the values as they were.
//
// libtorch calls back before each operation, with its schema and its arguments; collectives on
// tensors report what they write as operations do. Writes through a pointer are not seen.
//
// Threads: a watch sees operations of the thread that made it, and of the backwards that this one
// runs meanwhile, in whatever threads: those of a device have their own. Failure: OutOfMemory, and
// what a device says.

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tutti {

/// Bytes [begin, end) of a storage, which may be gone.
struct WrittenMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Threads in which a backward has run operations, and the number that the next node of each had
/// before the first of them.
using ThreadStarts = std::unordered_map<std::uint64_t, std::uint64_t>;

class WriteWatch {
 public:
  /// Begins. Watches may be nested: what an inner one has seen the outer one sees, too.
  WriteWatch();
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  /// What was written so far, each storage once.
  std::vector<WrittenMemory> take();
  ThreadStarts threads() const;

 private:
  /// libtorch hands it on to the threads of a backward, as a thread's state.
  struct Seen final : c10::DebugInfoBase {
    void note(const torch::Tensor& tensor);
    void note(WrittenMemory written);
    std::mutex mutex;
    std::unordered_map<const c10::StorageImpl*, WrittenMemory> written;
    ThreadStarts threads;
  };
  static Seen* current();
  static std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& operation);

  Seen* outer_;
  std::shared_ptr<Seen> seen_;
  c10::DebugInfoGuard in_thread_;
  at::RecordFunctionGuard enabled_;
  at::CallbackHandle callback_ = 0;  ///< of the outermost one
};

/// Values of what is left of some memory, which it gets back at the end, without a word to
/// autograd.
class RestoredMemory {
 public:
  explicit RestoredMemory(const std::vector<WrittenMemory>& memory);
  ~RestoredMemory();
  RestoredMemory(const RestoredMemory&) = delete;
  RestoredMemory& operator=(const RestoredMemory&) = delete;

 private:
  struct Copy {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::size_t begin;
    torch::Tensor bytes;  ///< where they lie
  };
  std::vector<Copy> copies_;
};

}  // namespace tutti
