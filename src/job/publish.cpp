#include "job/publish.h"

#include <algorithm>

#include "base/check.h"
#include "job/hosts/block_table.h"
#include "job/wait.h"
#include "job/wire/mix.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What fits in one message; larger data goes ahead in messages of its own.
constexpr std::size_t kMostBytes = std::size_t{256} << 10;

/// Appends that what the message has so far of this worker's stores in order is done: until then
/// the board shows that something is on its way.
void count(JobState& job, StoreMessage& message) {
  WorkerSlot& mine = job.slot(job.identity().rank);
  const auto done = job.blocks().place_of(&mine.stores_done);
  TUTTI_CHECK(done, "the board lies in no block");
  message.word(*done, mine.stores_sent.fetch_add(1, std::memory_order_acq_rel) + 1,
               sizeof(std::uint64_t));
}

constexpr Haste kWithNext{.kind = Haste::with_next};

/// A number that differs from those of other words and values.
std::uint64_t number_of(const BlockPlace& place, std::uint64_t value) {
  std::uint64_t number = 0;
  for (const auto part : {place.block, place.offset, value}) number = mix(number, part);
  return number;
}

Haste haste_of(const JobState& job, const Company& company, std::uint64_t value) {
  if (company.kind != Haste::with_all) return {.kind = company.kind};
  const auto place = job.blocks().place_of(company.first);
  TUTTI_CHECK(place, "the words of a round lie in no block");
  return {Haste::with_all, number_of(*place, value), *company.members};
}

/// The worker through which this one reaches rank 0, where what all hosts agree on is put in order.
RankSet way_to_the_hub(const JobState& job) {
  const int self = job.identity().rank;
  const int first = job.hosts().neighbours(self).first();
  if (first != self) return {first};
  return self == 0 ? RankSet() : RankSet{0};
}

template <class Word>
void decide_word(JobState& job, std::atomic<Word>& word, Word expected, Word desired) {
  const auto place = job.spans_hosts() ? job.blocks().place_of(&word) : std::nullopt;
  const auto alone = [&] { return !job.rendezvous().reaches_hosts(); };
  if (!place || alone()) {
    word.compare_exchange_strong(expected, desired);
    announce(job.board());
    return;
  }
  StoreMessage message;
  count(job, message);  // an exchange that fails is done too
  message.exchange(*place, expected, desired, sizeof word);
  job.store(message.take());
  wait_until(
      job, [&] { return word.load() != expected || alone(); },
      [&] {
        return WaitSubject{.missing = [] { return RankSet(); },
                           .members = {},
                           .what = [] { return "a decision of all hosts"; },
                           .check = {},
                           .deadline = job.deadline(),
                           .passed_on_by = way_to_the_hub(job)};
      });
  if (alone()) word.compare_exchange_strong(expected, desired);
}

void add_data(JobState& job, StoreMessage& message, std::span<const PublishedData> data) {
  for (const PublishedData& part : data) {
    for (std::size_t done = 0; done < part.bytes;) {
      const std::size_t now = std::min(part.bytes - done, kMostBytes);
      const auto* const at = static_cast<const std::byte*>(part.at) + done;
      const auto to = job.blocks().place_of(at);
      TUTTI_CHECK(to, "published data lies in no block");
      message.data(*to, at, now);
      done += now;
      if (message.size() >= kMostBytes) job.store(message.take(), kWithNext);
    }
  }
}

}  // namespace

void send_ahead(JobState& job, std::span<const PublishedData> data) {
  if (!job.spans_hosts()) return;
  const auto known = [&](const PublishedData& part) {
    return part.bytes == 0 || job.blocks().place_of(part.at);
  };
  if (!std::ranges::all_of(data, known)) return;  // the memory of a group on this host
  StoreMessage message;
  add_data(job, message, data);
  if (!message.empty()) job.store(message.take(), kWithNext);
}

bool publish_to_hosts(JobState& job, const void* word, std::uint64_t value, std::size_t bytes,
                      bool early, std::span<const PublishedData> data, const Company& company) {
  const auto place = job.blocks().place_of(word);
  if (!place || !job.rendezvous().reaches_hosts()) return false;
  StoreMessage message;
  add_data(job, message, data);
  message.word(*place, value, bytes, early);
  if (!early) count(job, message);
  job.store(message.take(), haste_of(job, company, value));
  return true;
}

void decide(JobState& job, std::atomic<std::uint64_t>& word, std::uint64_t expected,
            std::uint64_t desired) {
  decide_word(job, word, expected, desired);
}

void decide(JobState& job, std::atomic<std::uint32_t>& word, std::uint32_t expected,
            std::uint32_t desired) {
  decide_word(job, word, expected, desired);
}

void publish_time(JobState& job, std::atomic<std::int64_t>& word, Clock::time_point time) {
  word.store(time.time_since_epoch().count(), std::memory_order_release);
  const auto place = job.spans_hosts() ? job.blocks().place_of(&word) : std::nullopt;
  if (!place || !job.rendezvous().reaches_hosts()) return;
  std::chrono::nanoseconds rest{};
  if (time != Clock::time_point()) {
    rest =
        std::max<std::chrono::nanoseconds>(time - job.system().now(), std::chrono::nanoseconds(1));
  }
  StoreMessage message;
  message.time(*place, rest.count());
  job.store(message.take());
}

void publish_text(JobState& job, std::atomic<std::uint32_t>& version,
                  std::atomic<std::uint64_t>* words, std::size_t bytes, std::string_view text) {
  write_bytes(version, words, bytes, text);
  const auto place = job.spans_hosts() ? job.blocks().place_of(&version) : std::nullopt;
  if (!place || !job.rendezvous().reaches_hosts()) return;
  StoreMessage message;
  message.shared_bytes(*place, bytes, text);
  job.store(message.take());
}

}  // namespace tutti
