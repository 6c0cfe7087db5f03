#pragma once

// The test device's streams: queues of work, which runs in the thread that needs its result.
//
// There are no threads of its own: what has run is then a function of the calls alone, not of who
// was scheduled, work inherits no thread pool, and a debugger shows who asked. One lock covers
// queues and running work: the caller and autograd's thread may both ask, and whoever comes second
// finds it done, with all its writes visible. Work may therefore not call back into this file.

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/test_device.h"

namespace tutti::test_device {

inline constexpr auto kType = c10::DeviceType::PrivateUse1;
inline constexpr int kStreamsPerDevice = 9;  ///< the default one and a pool
inline constexpr int kMostDevices = 4;

/// A point between two pieces of work of a stream: what an event records.
struct Place {
  std::size_t stream = 0;
  std::int64_t after = 0;  ///< that many pieces of work
};

class Streams {
 public:
  static Streams& all();

  void open(int devices);
  int devices() const { return devices_; }
  void hold(Held held);

  void push(const c10::Stream& stream, std::function<void()> work);
  /// Queues work that is called until it returns true: it needs other processes.
  void push_shared(const c10::Stream& stream, std::function<bool()> work);
  Place end_of(const c10::Stream& stream);
  /// What is pushed to `stream` from now on runs after `place` has been passed. Runs nothing.
  void order_after(const c10::Stream& stream, const Place& place);
  bool passed(const Place& place);

  /// Whether it has been passed. It has by the third call at the latest, unless other processes
  /// are missing.
  bool query(const Place& place);
  /// Runs what leads to it, on other streams as well, and throws what has failed on the device.
  void synchronize(const Place& place);
  void synchronize(const c10::Stream& stream) { synchronize(end_of(stream)); }
  void synchronize_device(int device);

  std::int64_t ran();

 private:
  struct Work {
    std::optional<Place> awaits;  ///< passed first
    std::function<void()> run;
    std::function<bool()> attempt = nullptr;  ///< until it is true
  };
  struct Queue {
    bool is_default = false;
    std::deque<Work> waiting;
    std::int64_t done = 0;
    int queries = 0;  ///< in vain, since it last ran
  };

  static std::size_t index_of(const c10::Stream& stream);
  bool has_passed(const Place& place) const;
  bool is_held(const Queue& queue) const;
  bool is_ready(const Queue& queue);
  void run_front(Queue& queue);
  void run_free();
  /// False: other processes are missing.
  bool run_until(const Place& place);
  void throw_fault() const;

  std::mutex mutex_;
  std::vector<Queue> queues_;
  int devices_ = 0;
  Held held_ = Held::kSideStreams;
  std::int64_t ran_ = 0;
  std::string fault_;  ///< of the first work that threw
};

/// A kernel knows nothing of the thread that runs it: neither autograd nor autocast, nor who
/// watches.
struct KernelState {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::default_included_set,
      c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  at::DisableRecordFunctionGuard unseen;
  at::NoGradGuard no_grad;
};

/// The calling thread's stream of a device.
c10::Stream current_stream(c10::DeviceIndex device);
/// Makes it that, and returns the one before.
c10::Stream exchange_stream(const c10::Stream& stream);

}  // namespace tutti::test_device
