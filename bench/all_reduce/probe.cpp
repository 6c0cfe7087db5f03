// The limit a good hand reaches without the checks a library needs: forks, one memfd, flags to spin
// on. Way "reduce": slice owners add in place; where waits are dear (more ranks than cores) and
// messages small, every rank adds copies, with one wait. Way "copy": all ranks copy memory at once.

#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <thread>

#include "all_reduce/serve.h"

namespace {
constexpr std::int64_t kSmall = 4096;              // elements
constexpr std::int64_t kApart = (1 << 26) + 1232;  // 256 MiB, and never at equal offsets in a page
using Lanes [[gnu::vector_size(__BIGGEST_ALIGNMENT__), gnu::aligned(4), gnu::may_alias]] = float;
struct Shared {
  alignas(128) std::atomic<std::uint64_t> flags[4][16];  // one pair of cache lines per rank
  alignas(128) float slots[2][4][kSmall + 208];
};

template <int N>
class Probe {
 public:
  Probe(Shared* shared, int rank) : shared_(shared), rank_(rank) {
    for (int r = 0; r < N; ++r) buffers_[r] = reinterpret_cast<float*>(shared + 1) + r * kApart;
  }
  bench::Operation prepare(const std::string& way, std::int64_t count) {
    if (way == "copy") {
      for (auto* memory : {&from_, &to_}) memory->resize(count);
      return {nullptr, [this, count] { std::memcpy(to_.data(), from_.data(), count * 4); }};
    }
    if (crowded_ && count <= kSmall) return {buffers_[rank_], [this, count] { one_wait(count); }};
    return {buffers_[rank_], [this, count] { slice_owners(count); }};
  }

 private:
  void arrive_and_wait() {
    shared_->flags[rank_][0].store(++sequence_, std::memory_order_release);
    for (int r = 0; r < N; ++r) {
      while (shared_->flags[r][0].load(std::memory_order_acquire) < sequence_) {
        crowded_ ? static_cast<void>(sched_yield()) : _mm_pause();
      }
    }
  }
  /// The sum of N sources to each of To places, for elements [i, end): multiples of a vector.
  template <int To>
  static void add(std::array<float*, N> from, std::array<float*, To> to, std::int64_t i,
                  std::int64_t end) {
    const auto at = [&i](float* data) -> Lanes& { return *reinterpret_cast<Lanes*>(data + i); };
#pragma GCC unroll 4
    for (; i < end; i += sizeof(Lanes) / 4) {
      Lanes total = at(from[0]) + at(from[1]);
      if constexpr (N == 4) total += at(from[2]) + at(from[3]);
      for (float* place : to) at(place) = total;
    }
  }
  void one_wait(std::int64_t count) {
    auto& slots = shared_->slots[sequence_ % 2];
    std::memcpy(slots[rank_], buffers_[rank_], count * 4);
    arrive_and_wait();
    std::array<float*, N> from;
    std::copy_n(slots, N, from.begin());
    add<1>(from, {buffers_[rank_]}, 0, count);
  }
  void slice_owners(std::int64_t count) {
    arrive_and_wait();
    add<N>(buffers_, buffers_, count / N * rank_, count / N * (rank_ + 1));
    arrive_and_wait();
  }

  Shared* shared_;
  int rank_;
  std::array<float*, N> buffers_;
  std::uint64_t sequence_ = 0;
  bool crowded_ = N > std::thread::hardware_concurrency();
  std::vector<float> from_, to_;
};
}  // namespace

int main(int count, char** arguments) {
  if (count != 3) bench::fail("usage: probe SOCKET SIZE");
  const int size = std::atoi(arguments[2]);
  const std::size_t bytes = sizeof(Shared) + size * kApart * 4;
  const int memory = memfd_create("probe", MFD_CLOEXEC);
  if (ftruncate(memory, bytes) != 0) bench::fail("no memory file");
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  madvise(mapped, bytes, MADV_HUGEPAGE);
  auto* shared = static_cast<Shared*>(mapped);
  int rank = 0;
  for (int r = 1; r < size && rank == 0; ++r) rank = fork() == 0 ? r : 0;
  const auto serve = [&](auto it) {
    bench::serve(arguments[1], rank, size, [&](auto& way, auto n) { return it.prepare(way, n); });
  };
  size == 2 ? serve(Probe<2>(shared, rank)) : serve(Probe<4>(shared, rank));
}
