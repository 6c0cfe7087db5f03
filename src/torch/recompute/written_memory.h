#pragma once

// The memory that torch's operations write to while a segment runs: of what outlives the segment,
// a batch norm's statistics or a counter, the second run has to leave the values as they were.
//
// libtorch calls back before each operation, with its schema and its arguments. Writes through a
// pointer are not seen.
//
// Threads: a watch sees operations of the thread that made it. Failure: OutOfMemory alone.

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

namespace tutti {

/// Bytes [begin, end) of a storage, which may be gone.
struct WrittenMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin = 0;
  std::size_t end = 0;
};

class WriteWatch {
 public:
  /// Begins. Watches may be nested: what an inner one has seen the outer one sees, too.
  WriteWatch();
  ~WriteWatch();
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  /// What was written so far, each storage once.
  std::vector<WrittenMemory> take();

 private:
  static std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& operation);
  void note(const torch::Tensor& tensor);
  void note(WrittenMemory written);

  at::RecordFunctionGuard enabled_;
  WriteWatch* outer_;
  at::CallbackHandle callback_ = 0;  ///< of the outermost one
  std::unordered_map<const c10::StorageImpl*, WrittenMemory> written_;
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
    std::vector<std::byte> bytes;
  };
  std::vector<Copy> copies_;
};

}  // namespace tutti
