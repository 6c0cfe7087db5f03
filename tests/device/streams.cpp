#include "device/streams.h"

#include <c10/util/Exception.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

namespace tutti::test_device {
namespace {

constexpr int kQueriesInVain = 2;
constexpr std::chrono::milliseconds kRound{1};
constexpr int kMostRounds = 30'000;

thread_local std::array<c10::StreamId, kMostDevices> current_streams{};

}  // namespace

Streams& Streams::all() {
  static auto* const streams = new Streams();  // for autograd's threads, which may outlive main()
  return *streams;
}

void Streams::open(int devices) {
  TORCH_CHECK(devices >= 1 && devices <= kMostDevices, "no more than ", kMostDevices, " devices");
  const std::lock_guard lock(mutex_);
  devices_ = devices;
  queues_.resize(static_cast<std::size_t>(devices * kStreamsPerDevice));
  for (std::size_t q = 0; q < queues_.size(); q += kStreamsPerDevice) queues_[q].is_default = true;
}

void Streams::hold(Held held) {
  for (int device = 0; device < devices_; ++device) synchronize_device(device);
  const std::lock_guard lock(mutex_);
  held_ = held;
}

void Streams::push(const c10::Stream& stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queues_.at(index_of(stream)).waiting.push_back({std::nullopt, std::move(work)});
  run_free();
}

void Streams::push_shared(const c10::Stream& stream, std::function<bool()> work) {
  const std::lock_guard lock(mutex_);
  queues_.at(index_of(stream)).waiting.push_back({std::nullopt, nullptr, std::move(work)});
  run_free();
}

Place Streams::end_of(const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto& queue = queues_.at(index_of(stream));
  return {index_of(stream), queue.done + static_cast<std::int64_t>(queue.waiting.size())};
}

void Streams::order_after(const c10::Stream& stream, const Place& place) {
  const std::lock_guard lock(mutex_);
  queues_.at(index_of(stream)).waiting.push_back({place, nullptr});
  run_free();
}

bool Streams::passed(const Place& place) {
  const std::lock_guard lock(mutex_);
  return has_passed(place);
}

bool Streams::query(const Place& place) {
  const std::lock_guard lock(mutex_);
  auto& queue = queues_.at(place.stream);
  if (!has_passed(place) && ++queue.queries > kQueriesInVain) run_until(place);
  throw_fault();
  return has_passed(place);
}

void Streams::synchronize(const Place& place) {
  for (int round = 0;; ++round) {
    {
      const std::lock_guard lock(mutex_);
      const bool is_there = run_until(place);
      throw_fault();
      if (is_there) return;
    }
    TORCH_CHECK(round < kMostRounds, "other processes have not come");
    std::this_thread::sleep_for(kRound);
  }
}

void Streams::synchronize_device(int device) {
  for (c10::StreamId id = 0; id < kStreamsPerDevice; ++id) {
    const c10::Device on(kType, static_cast<c10::DeviceIndex>(device));
    synchronize(c10::Stream(c10::Stream::UNSAFE, on, id));
  }
}

std::int64_t Streams::ran() {
  const std::lock_guard lock(mutex_);
  return ran_;
}

std::size_t Streams::index_of(const c10::Stream& stream) {
  return static_cast<std::size_t>(stream.device_index() * kStreamsPerDevice + stream.id());
}

bool Streams::has_passed(const Place& place) const {
  return queues_.at(place.stream).done >= place.after;
}

bool Streams::is_held(const Queue& queue) const {
  return queue.is_default == (held_ == Held::kDefaultStreams);
}

bool Streams::is_ready(const Queue& queue) {
  if (queue.waiting.empty()) return false;
  const auto& work = queue.waiting.front();
  if (work.attempt) return work.attempt();
  return !work.awaits || has_passed(*work.awaits);
}

void Streams::run_front(Queue& queue) {
  const auto work = std::move(queue.waiting.front());
  queue.waiting.pop_front();
  if (work.run) {
    const KernelState state;
    try {
      work.run();
    } catch (const c10::Error& error) {
      if (fault_.empty()) fault_ = error.what_without_backtrace();
    } catch (const std::exception& error) {
      if (fault_.empty()) fault_ = error.what();
    }
    ++ran_;
  }
  ++queue.done;
  queue.queries = 0;
}

/// Streams that are not held are as far as they can be.
void Streams::run_free() {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& queue : queues_) {
      while (!is_held(queue) && is_ready(queue)) {
        run_front(queue);
        moved = true;
      }
    }
  }
}

/// What a place waits for was pushed before it: this comes to an end.
bool Streams::run_until(const Place& place) {
  std::vector<Place> wanted{place};
  while (!wanted.empty()) {
    if (has_passed(wanted.back())) {
      wanted.pop_back();
      continue;
    }
    auto& queue = queues_.at(wanted.back().stream);
    if (!is_ready(queue)) {
      if (queue.waiting.front().attempt) return false;
      wanted.push_back(*queue.waiting.front().awaits);
      continue;
    }
    run_front(queue);
    run_free();
  }
  return true;
}

void Streams::throw_fault() const {
  TORCH_CHECK(fault_.empty(), "the test device failed earlier: ", fault_);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, {kType, device},
                     current_streams.at(static_cast<std::size_t>(device)));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  auto& now = current_streams.at(static_cast<std::size_t>(stream.device_index()));
  return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(now, stream.id()));
}

}  // namespace tutti::test_device
