#pragma once

// Sleep on a word of shared memory until a thread of any process wakes its sleepers, or poll it.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti {

/// Sleeps while `word` holds `expected`, at most for `at_most`. May return early for no reason.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds at_most) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

/// Tells the processor that this thread polls.
inline void pause_cpu() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace tutti
