#include "device/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/streams.h"

namespace tutti::test_device {
namespace {

constexpr std::size_t kCapacity = std::size_t{4} << 30;  // of addresses; pages come when touched
constexpr std::size_t kUnit = 512;
constexpr int kPoison = 0xFF;  // NaN in every floating type

struct Pages {
  std::byte* device = nullptr;
  std::byte* kernel = nullptr;
};
Pages pages;  // set before there are tensors, constant since

std::byte* map_pages(int file, int access) {
  void* const at = ::mmap(nullptr, kCapacity, access, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(at != MAP_FAILED, "no addresses for the test device's memory");
  return static_cast<std::byte*>(at);
}

void poison(void* at, std::size_t bytes) { std::memset(kernel_address(at), kPoison, bytes); }

class Blocks {
 public:
  static Blocks& all() {
    static auto* const blocks = new Blocks();
    return *blocks;
  }

  std::byte* take(std::size_t bytes, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    collect();
    auto& kept = kept_[{stream.hash(), bytes}];
    std::byte* at = nullptr;
    if (kept.empty()) {
      at = fresh(bytes);
    } else {
      at = kept.back();
      kept.pop_back();
    }
    used_.emplace(at, Block{at, bytes, stream, {}});
    return at;
  }

  void add_user(void* at, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(static_cast<std::byte*>(at));
    if (found != used_.end() && found->second.stream != stream) {
      found->second.users.push_back(stream);
    }
  }

  void leave(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    capacity_ = std::min(kCapacity, taken_ + bytes);
  }

  /// Free, and all.
  std::pair<std::size_t, std::size_t> info() {
    const std::lock_guard lock(mutex_);
    return {capacity_ - taken_, capacity_};
  }
  c10::CachingDeviceAllocator::DeviceStats stats() {
    const std::lock_guard lock(mutex_);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.reserved_bytes[0].current = static_cast<std::int64_t>(taken_);
    for (const auto& block : used_) {
      stats.allocated_bytes[0].current += static_cast<std::int64_t>(block.second.bytes);
    }
    return stats;
  }

  void give_back(void* at) {
    const std::lock_guard lock(mutex_);
    auto node = used_.extract(static_cast<std::byte*>(at));
    auto& block = node.mapped();
    Leaving leaving{block, {}};
    for (const auto& user : block.users) leaving.until.push_back(Streams::all().end_of(user));
    leaving_.push_back(std::move(leaving));
    collect();
  }

 private:
  struct Block {
    std::byte* at;
    std::size_t bytes;
    c10::Stream stream;
    std::vector<c10::Stream> users;
  };
  struct Leaving {
    Block block;
    std::vector<Place> until;
  };

  std::byte* fresh(std::size_t bytes) {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= capacity_ - taken_,
                     "the test device is out of memory: ", bytes, " bytes wanted, ",
                     capacity_ - taken_, " of ", capacity_, " free");
    auto* const at = pages.device + taken_;
    taken_ += bytes;
    poison(at, bytes);
    return at;
  }

  /// Takes back the freed blocks that no other stream uses any more.
  void collect() {
    auto& streams = Streams::all();
    std::erase_if(leaving_, [&](const Leaving& leaving) {
      const auto& [block, until] = leaving;
      const auto passed = [&](const Place& place) { return streams.passed(place); };
      if (!std::all_of(until.begin(), until.end(), passed)) return false;
      streams.push(block.stream, [at = block.at, n = block.bytes] { poison(at, n); });
      kept_[{block.stream.hash(), block.bytes}].push_back(block.at);
      return true;
    });
  }

  std::mutex mutex_;
  std::size_t capacity_ = kCapacity;
  std::size_t taken_ = 0;
  std::unordered_map<std::byte*, Block> used_;
  std::vector<Leaving> leaving_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::byte*>> kept_;
};

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::impl::VirtualGuardImpl guard(kType);
    return test_device::allocate(bytes, guard.getDevice().index());
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const c10::impl::VirtualGuardImpl guard(kType);
    Streams::all().push(guard.getStream(guard.getDevice()), [to, from, bytes] {
      std::memcpy(kernel_address(to), kernel_address(from), bytes);
    });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Blocks::all().add_user(data.get_context(), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    return Blocks::all().stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) override {
    return Blocks::all().info();
  }
  static void release(void* at) { Blocks::all().give_back(at); }
};

class PinnedRanges {
 public:
  static PinnedRanges& all() {
    static auto* const ranges = new PinnedRanges();
    return *ranges;
  }
  void add(const std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ends_[begin] = begin + bytes;
  }
  void remove(const std::byte* begin) {
    const std::lock_guard lock(mutex_);
    ends_.erase(begin);
  }
  bool contains(const std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto range = ends_.upper_bound(begin);
    if (range == ends_.begin()) return false;
    --range;
    return begin < range->second && bytes <= static_cast<std::size_t>(range->second - begin);
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, const std::byte*, std::less<>> ends_;
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const at = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    TORCH_CHECK(at != nullptr, "no memory to pin");
    pin(at, bytes);
    return {at, at, &release, c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* at) {
    unpin(at);
    std::free(at);
  }
};

// Error numbers of cuda_runtime_api.h.
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kNotPermitted = 800;
int registration_error = 0;
int left_error = 0;  ///< until somebody asks

}  // namespace

void open_memory() {
  const int file = ::memfd_create("test device", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(kCapacity)) == 0,
              "no file for the test device's memory");
  pages = {map_pages(file, PROT_NONE), map_pages(file, PROT_READ | PROT_WRITE)};
  ::close(file);
}

void* kernel_address(const void* at) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(at) - pages.device);
  TORCH_CHECK(offset < kCapacity, "no address of the test device");
  return pages.kernel + offset;
}

c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device) {
  const c10::Device on(kType, device);
  if (bytes == 0) return {nullptr, on};
  auto* const at = Blocks::all().take((bytes + kUnit - 1) / kUnit * kUnit, current_stream(device));
  return {at, at, &DeviceAllocator::release, on};
}

void keep_for(const c10::DataPtr& data, const c10::Stream& stream) {
  Blocks::all().add_user(data.get_context(), stream);
}

c10::Allocator& device_allocator() {
  static auto* const allocator = new DeviceAllocator();
  return *allocator;
}

bool is_pinned(const void* begin, std::size_t bytes) {
  return PinnedRanges::all().contains(static_cast<const std::byte*>(begin), bytes);
}

c10::Allocator& pinned_allocator() {
  static auto* const allocator = new PinnedAllocator();
  return *allocator;
}

void pin(const void* begin, std::size_t bytes) {
  PinnedRanges::all().add(static_cast<const std::byte*>(begin), bytes);
}
void unpin(const void* begin) { PinnedRanges::all().remove(static_cast<const std::byte*>(begin)); }

void leave_memory(std::size_t bytes) { Blocks::all().leave(bytes); }

void refuse_registration(bool refuses) { registration_error = refuses ? kNotPermitted : 0; }

}  // namespace tutti::test_device

// What CUDA's library has, by the names that this device's would have.
extern "C" {

__attribute__((visibility("default"))) int testHostRegister(void* begin, std::size_t bytes,
                                                            unsigned /*flags*/) {
  using namespace tutti::test_device;
  if (registration_error != 0) return left_error = registration_error;
  if (is_pinned(begin, 1)) return left_error = kAlreadyRegistered;
  pin(begin, bytes);
  return 0;
}

__attribute__((visibility("default"))) int testHostUnregister(void* begin) {
  using namespace tutti::test_device;
  if (!is_pinned(begin, 1)) return left_error = kNotRegistered;
  unpin(begin);
  return 0;
}

__attribute__((visibility("default"))) int testGetLastError() {
  return std::exchange(tutti::test_device::left_error, 0);
}

}  // extern "C"
