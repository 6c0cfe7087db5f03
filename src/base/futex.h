#pragma once

// Sleep on a word of shared memory until a thread of any process wakes its sleepers.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti {

/// Sleeps while `word` holds `expected`, at most for `at_most`. May return early for no reason.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds at_most) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace tutti
