#pragma once

// Stores that other workers wait for. On one host a release store and an announcement. Where
// workers of other hosts know the memory as well, such a store takes effect in the one order of all
// hosts (hosts/host_order.h), also for the worker that makes it: its own host sees it once it is in
// order, so that all hosts see the same history.
//
// Threads: those that may write the word. Failure: none but of memory; what does not reach others
// any more ends their waits by the ways of wait.h.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "job/job_state.h"
#include "job/wire/board.h"

namespace tutti {

/// Plain values that the word publishes: who has seen the word sees them.
struct PublishedData {
  const void* at = nullptr;
  std::size_t bytes = 0;
};
template <class T>
PublishedData published(const T& value) {
  return {&value, sizeof value};
}
/// Members `first` to `last` of an object, in the order of its declaration.
template <class First, class Last>
PublishedData published(const First& first, const Last& last) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&first);
  return {begin, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&last + 1) - begin)};
}

/// What a store may wait for on its way to other hosts (Haste): by default for nothing.
struct Company {
  Haste::Kind kind = Haste::at_once;
  const void* first = nullptr;       ///< of a round: the first member's word of it
  const RankSet* members = nullptr;  ///< job ranks
};
/// Nobody waits for the word alone: a later store of this worker tells.
inline Company with_next() { return {.kind = Haste::with_next}; }
/// All `members` store the same value to their words, of which the first member's is `first`, and
/// nobody gets on before all have.
template <class Word>
Company with_all(const std::atomic<Word>& first, const RankSet& members) {
  return {Haste::with_all, &first, &members};
}

/// The part of publish() where other hosts may know the memory. False where none does.
bool publish_to_hosts(JobState& job, const void* word, std::uint64_t value, std::size_t bytes,
                      bool early, std::span<const PublishedData> data, const Company& company);

template <class Word>
void publish(JobState& job, std::atomic<Word>& word, Word value,
             std::initializer_list<PublishedData> data = {}, const Company& company = {}) {
  if (job.spans_hosts() &&
      publish_to_hosts(job, &word, static_cast<std::uint64_t>(value), sizeof word, false,
                       std::span(data.begin(), data.size()), company)) {
    return;
  }
  word.store(value, std::memory_order_release);
  announce(job.board());
}

/// The same for a word whose order does not matter: this host sees it at once.
template <class Word>
void publish_early(JobState& job, std::atomic<Word>& word, Word value,
                   std::initializer_list<PublishedData> data = {}) {
  word.store(value, std::memory_order_release);
  if (job.spans_hosts()) {
    publish_to_hosts(job, &word, static_cast<std::uint64_t>(value), sizeof word, true,
                     std::span(data.begin(), data.size()), {});
  }
  announce(job.board());
}

/// Sends plain values of this worker to the other hosts, where they are known, ahead of what it
/// publishes from now on.
void send_ahead(JobState& job, std::span<const PublishedData> data);
inline void send_ahead(JobState& job, std::initializer_list<PublishedData> data) {
  send_ahead(job, std::span(data.begin(), data.size()));
}

/// Sets the word to `desired` if it is `expected`: of workers that try, one succeeds, the same one
/// on all hosts. Returns once the word is something else.
void decide(JobState& job, std::atomic<std::uint64_t>& word, std::uint64_t expected,
            std::uint64_t desired);
void decide(JobState& job, std::atomic<std::uint32_t>& word, std::uint32_t expected,
            std::uint32_t desired);

/// Stores a time of this host's clock, which other hosts get as one of theirs; the clock's epoch
/// stands for none.
void publish_time(JobState& job, std::atomic<std::int64_t>& word, Clock::time_point time);

/// Writes a text that others may read at any time.
void publish_text(JobState& job, std::atomic<std::uint32_t>& version,
                  std::atomic<std::uint64_t>* words, std::size_t bytes, std::string_view text);
template <std::size_t Bytes>
void publish_text(JobState& job, SharedText<Bytes>& to, std::string_view text) {
  publish_text(job, to.version, to.words.data(), Bytes, text);
}

}  // namespace tutti
