// What c10 and ATen ask of a device: its guard, generators and hooks.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "device/launch.h"
#include "device/memory.h"
#include "device/native_stream.h"
#include "device/streams.h"
#include "device/test_device.h"

namespace tutti::test_device {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

thread_local DeviceIndex current_device = 0;

DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : current_device; }

/// One for each stream, which lives as long as the process.
NativeStream* native_stream_of(const Stream& stream) {
  static std::array<NativeStream, kMostDevices * kStreamsPerDevice> all;
  auto& one =
      all.at(static_cast<std::size_t>(stream.device_index() * kStreamsPerDevice + stream.id()));
  one = {stream.device_index(), static_cast<int>(stream.id()),
         [](const NativeStream& to, std::function<bool()> work) {
           const Device device(kType, static_cast<DeviceIndex>(to.device));
           Streams::all().push_shared(Stream(Stream::UNSAFE, device, to.id), std::move(work));
         },
         kernel_address};
  return &one;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(Streams::all().devices());
  }
  Device exchangeDevice(Device device) const override {
    return {kType, std::exchange(current_device, index_of(device))};
  }
  Device getDevice() const override { return {kType, current_device}; }
  void setDevice(Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = index_of(device);
  }

  Stream getStream(Device device) const override { return current_stream(index_of(device)); }
  Stream getDefaultStream(Device device) const override { return stream_of(device, 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    static std::atomic<unsigned> next{0};
    return stream_of(device, 1 + static_cast<int>(next++ % (kStreamsPerDevice - 1)));
  }
  Stream getNewStream(Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  // Versions of libtorch before 2.13 may not know it.
  void* getStreamNativeHandle(const Stream stream) const { return native_stream_of(stream); }
  Stream exchangeStream(Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const Stream& stream) const override {
    return Streams::all().query(Streams::all().end_of(stream));
  }
  void synchronizeStream(const Stream& stream) const override {
    Streams::all().synchronize(stream);
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    Streams::all().synchronize_device(device);
  }

  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Place();
    place_of(*event) = Streams::all().end_of(stream);
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) Streams::all().order_after(stream, place_of(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || Streams::all().query(place_of(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Streams::all().synchronize(place_of(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Place*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    keep_for(data, stream);
  }

 private:
  static Stream stream_of(Device device, int id) {
    return Stream(Stream::UNSAFE, {kType, index_of(device)}, id);
  }
  static Place& place_of(void* event) { return *static_cast<Place*>(event); }
};

/// Draws what the CPU's does from the same seed.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex device) {
    device_ = {kType, device};
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  Hooks() {
    for (int device = 0; device < Streams::all().devices(); ++device) {
      generators_.push_back(getNewGenerator(static_cast<DeviceIndex>(device)));
    }
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return guard_.deviceCount(); }
  void setCurrentDevice(DeviceIndex device) const override { current_device = device; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* at) const override { return is_pinned(at, 1); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  Device getDeviceFromPtr(void*) const override { return {kType, current_device}; }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return generators_.at(static_cast<std::size_t>(device < 0 ? current_device : device));
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device);
  }

 private:
  Guard guard_;
  std::vector<at::Generator> generators_;
};

}  // namespace

void register_device(int devices) {
  Streams::all().open(devices);
  open_memory();
  c10::register_privateuse1_backend("test");
  c10::SetAllocator(kType, &device_allocator());
  c10::impl::registerDeviceGuard(kType, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  at::globalContext().lazyInitDevice(kType);  // before that, is_pinned() asks no device
}

c10::Device device(int index) { return {kType, static_cast<DeviceIndex>(index)}; }

void hold(Held held) { Streams::all().hold(held); }

void synchronize() {
  for (int device = 0; device < Streams::all().devices(); ++device) {
    Streams::all().synchronize_device(device);
  }
}

}  // namespace tutti::test_device
