#pragma once

// What the native handle of a test device's stream points to: how libraries that know nothing of
// libtorch queue work on it, as they do by a cudaStream_t.
//
// Threads: any.

#include <functional>

namespace tutti::test_device {

struct NativeStream {
  int device = 0;
  int id = 0;
  /// Queues work that is called until it returns true, and never blocks: what waits for other
  /// processes. Later work of the stream comes after it.
  void (*push)(const NativeStream& stream, std::function<bool()> work) = nullptr;
  /// Where work finds what tensors have at this address.
  void* (*kernel_address)(const void* at) = nullptr;
};

}  // namespace tutti::test_device
