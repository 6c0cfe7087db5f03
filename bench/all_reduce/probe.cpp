// The limit that a good hand reaches on this machine, without any of the checks a library needs:
// forked processes, one memfd, flags to spin on. Way "reduce": slice owners add in place; messages
// up to kSmall are copied to a slot and added by every rank, with one wait. Way "copy": every rank
// copies its own memory at the same time, which is the roof for memory traffic.

#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "all_reduce/serve.h"

namespace {

constexpr std::int64_t kSmall = 4096, kLargest = std::int64_t{1} << 26;  // elements
struct alignas(128) Flag {
  std::atomic<std::uint64_t> value;
};
struct Shared {
  Flag flags[64];
  alignas(64) float slots[2][64][kSmall];
};

template <int N>
class Probe {
 public:
  Probe(Shared* shared, float* first, int rank) : shared_(shared), rank_(rank) {
    for (int r = 0; r < N; ++r) buffers_[r] = first + r * kLargest;
  }
  bench::Operation prepare(const std::string& way, std::int64_t count) {
    if (way == "copy") {
      from_.resize(count), to_.resize(count);
      return {nullptr, [this, count] { std::memcpy(to_.data(), from_.data(), count * 4); }};
    }
    if (count <= kSmall) return {buffers_[rank_], [this, count] { one_wait(count); }};
    return {buffers_[rank_], [this, count] { slice_owners(count); }};
  }

 private:
  void arrive_and_wait() {
    shared_->flags[rank_].value.store(++sequence_, std::memory_order_release);
    for (int r = 0; r < N; ++r) {
      while (shared_->flags[r].value.load(std::memory_order_acquire) < sequence_) {
        crowded_ ? static_cast<void>(sched_yield()) : _mm_pause();
      }
    }
  }
  static float sum(float* const* from, std::int64_t i) {
    float total = from[0][i] + from[1][i];
    if constexpr (N == 4) total += from[2][i] + from[3][i];
    return total;
  }
  void one_wait(std::int64_t count) {
    float* from[N];
    for (int r = 0; r < N; ++r) from[r] = shared_->slots[sequence_ % 2][r];
    std::memcpy(from[rank_], buffers_[rank_], count * 4);
    arrive_and_wait();
    float* own = buffers_[rank_];
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) own[i] = sum(from, i);
  }
  void slice_owners(std::int64_t count) {
    arrive_and_wait();
    const std::int64_t slice = (count / N + 63) / 64 * 64;
    const std::int64_t end = std::min(count, slice * (rank_ + 1));
#pragma GCC ivdep
    for (std::int64_t i = slice * rank_; i < end; ++i) {
      const float total = sum(buffers_, i);
      for (int r = 0; r < N; ++r) buffers_[r][i] = total;
    }
    arrive_and_wait();
  }

  Shared* shared_;
  int rank_;
  float* buffers_[N];
  std::uint64_t sequence_ = 0;
  bool crowded_ = N > std::thread::hardware_concurrency();
  std::vector<float> from_, to_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) bench::fail("usage: probe SOCKET SIZE");
  const int size = std::atoi(arguments[2]);
  const std::size_t bytes = sizeof(Shared) + size * kLargest * 4;
  const int memory = memfd_create("probe", MFD_CLOEXEC);
  if (ftruncate(memory, bytes) != 0) bench::fail("ftruncate");
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  madvise(mapped, bytes, MADV_HUGEPAGE);
  auto* shared = static_cast<Shared*>(mapped);
  int rank = 0;
  for (int r = 1; r < size && rank == 0; ++r) rank = fork() == 0 ? r : 0;
  const auto serve = [&](auto probe) {
    bench::serve(arguments[1], rank, size,
                 [&](auto& way, auto n) { return probe.prepare(way, n); });
  };
  auto* first = reinterpret_cast<float*>(shared + 1);
  size == 2 ? serve(Probe<2>(shared, first, rank)) : serve(Probe<4>(shared, first, rank));
}
