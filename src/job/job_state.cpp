#include "job/job_state.h"

#include <algorithm>
#include <exception>
#include <new>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/timeline.h"
#include "job/hosts/block_table.h"
#include "job/hosts/host_memory.h"
#include "job/life/life_watch.h"
#include "job/wire/rank_set.h"
#include "mpi/mpi_library.h"
#include "tutti/environment.h"
#include "tutti/error.h"
#include "tutti/limits.h"

namespace tutti {

namespace {

constexpr std::chrono::microseconds kSpin{20};
constexpr int kCrowdedRounds = 8;
/// Longer than any run; keeps time arithmetic from overflowing.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365 * 10);

void check_arguments(const Identity& identity, const JobOptions& options) {
  if (identity.size < 1 || identity.size > kMaxWorkers)
    throw InvalidArgument(
        fmt::format("a job of {} workers: must be 1 to {}", identity.size, kMaxWorkers));
  if (!identity.hosts && identity.size > kMaxWorkersPerHost)
    throw InvalidArgument(
        fmt::format("{} workers on one host: must be 1 to {}", identity.size, kMaxWorkersPerHost));
  if (identity.rank < 0 || identity.rank >= identity.size)
    throw InvalidArgument(fmt::format("rank {} of {} workers: must be 0 to {}", identity.rank,
                                      identity.size, identity.size - 1));
  if (identity.threads < 1)
    throw InvalidArgument(
        fmt::format("{} threads per worker: must be 1 or more", identity.threads));
  if (identity.restarts < 0)
    throw InvalidArgument(fmt::format("{} restarts: must be 0 or more", identity.restarts));
  require_positive(options.join_deadline, "join_deadline");
  require_positive(options.deadline, "deadline");
  require_positive(options.stall_notice, "stall_notice");
}

/// A pause takes 3 ns on one processor and 60 on the next.
int rounds_within(std::chrono::nanoseconds time) {
  constexpr int kSample = 200;
  auto least = std::chrono::nanoseconds::max();
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto begin = Clock::now();
    for (int i = 0; i < kSample; ++i) pause_cpu();
    least = std::min<std::chrono::nanoseconds>(least, Clock::now() - begin);
  }
  const auto each = std::max<std::int64_t>(least.count() / kSample, 1);
  return static_cast<int>(std::clamp<std::int64_t>(time.count() / each, 100, 10'000));
}

/// Facts that must be equal on all workers, as text.
std::string common_facts(const Identity& identity) {
  return fmt::format("{} workers, {} threads each, restart {}, board layout {}{}", identity.size,
                     identity.threads, identity.restarts, sizeof(Board),
                     identity.links.empty() ? "" : ", " + identity.links);
}

/// The first line of what a worker sends when it joins is the facts, the second its processors.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

void require_positive(std::chrono::milliseconds time, const char* what) {
  if (time <= std::chrono::milliseconds::zero())
    throw InvalidArgument(fmt::format("{} is {} ms: must be positive", what, time.count()));
}

JobState::JobState(Identity identity, std::shared_ptr<System> system,
                   std::shared_ptr<Rendezvous> rendezvous, JobOptions options)
    : identity_(std::move(identity)),
      system_(std::move(system)),
      rendezvous_(std::move(rendezvous)),
      options_(options),
      hosts_((check_arguments(identity_, options_), identity_.hosts)
                 ? *identity_.hosts
                 : HostMap::one(identity_.size)),
      spans_hosts_(hosts_.hosts() > 1),
      blocks_(std::make_unique<BlockTable>(rendezvous_)) {
  spin_rounds_ = rounds_within(kSpin);
  if (const std::string file = Environment::read().profile; !file.empty())
    timeline_ = std::make_unique<Timeline>(file, identity_.rank, identity_.size);
  find_others();
}

void JobState::find_others() {
  const RankSet& here = hosts_.neighbours(identity_.rank);
  const int first_here = here.first();
  Parcel mine{
      fmt::format("{}\n{}", common_facts(identity_), fmt::join(system_->allowed_processors(), " ")),
      {}};
  if (identity_.size > 1) mine.descriptors.push_back(system_->life_line());
  if (identity_.rank == first_here) {
    FileDescriptor board_file = system_->create_memory("board", sizeof(Board));
    board_memory_ = system_->map(board_file, sizeof(Board));
    new (board_memory_.get()) Board;
    take_board(board_file, true);
    if (identity_.size > 1) mine.descriptors.push_back(std::move(board_file));
  }
  if (identity_.size == 1) processors_per_worker_ = system_->processors();
  if (identity_.size > 1) {
    std::vector<Parcel> parcels;
    try {
      parcels = rendezvous_->all_gather("Job::join()", RankSet::below(identity_.size).ranks(),
                                        std::move(mine), deadline(options_.join_deadline));
    } catch (const PeerLost& lost) {
      rendezvous_->blame(lost.rank(), lost.what());
      throw;
    }
    std::vector<FileDescriptor> lines(parcels.size());
    for (int r = 0; r < identity_.size; ++r) {
      Parcel& parcel = parcels[static_cast<std::size_t>(r)];
      if (first_line(parcel.bytes) != first_line(parcels[0].bytes))
        throw Mismatch(
            fmt::format("workers were started differently: rank 0 has {}; rank {} has {}",
                        first_line(parcels[0].bytes), r, first_line(parcel.bytes)));
      const std::size_t needed = !here.contains(r) ? 0 : r == first_here ? 2 : 1;
      TUTTI_CHECK(parcel.descriptors.size() == needed, "rank {} joined with {} descriptors", r,
                  parcel.descriptors.size());
      if (needed == 0 || r == identity_.rank) continue;
      lines[static_cast<std::size_t>(r)] = std::move(parcel.descriptors[0]);
    }
    if (identity_.rank != first_here) {
      take_board(parcels[static_cast<std::size_t>(first_here)].descriptors[1], false);
    }
    // The brokers tell workers of other hosts.
    std::function<void(int)> tell;
    if (spans_hosts_) tell = [this](int rank) { rendezvous_->report_end(rank); };
    watch_ = std::make_unique<LifeWatch>(*board_, std::move(lines), std::move(tell));
    count_processors(parcels);
    if (spans_hosts_) {
      // Workers that can no longer be reached have ended, as far as this one can ever see.
      rendezvous_->when_alone([this] {
        mark_cut_off(*board_, hosts_.neighbours(identity_.rank).first());
        const RankSet away = RankSet::below(identity_.size) - hosts_.neighbours(identity_.rank);
        for (const int rank : away.ranks()) mark_ended(*board_, slot(rank));
      });
    }
  }
  show(WorkerSlot::joined);
}

/// Does what publish_early() does, which needs this class: this host sees the state at once.
void JobState::show(WorkerSlot::State state) {
  auto& word = slot(identity_.rank).state;
  word.store(state, std::memory_order_release);
  if (const auto place = blocks_->place_of(&word); place && rendezvous_->reaches_hosts()) {
    StoreMessage message;
    message.word(*place, state, sizeof word, /*early=*/true);
    store(message.take());
  }
  announce(*board_);
}

/// `gives`: the broker of this host has it from this worker.
void JobState::take_board(const FileDescriptor& file, bool gives) {
  board_memory_ = system_->map(file, sizeof(Board));
  board_ = reinterpret_cast<Board*>(board_memory_.get());
  if (!spans_hosts_) return;
  held_board_ = blocks_->hold(kBoardBlock, board_memory_.get(), sizeof(Board),
                              gives ? file.duplicate() : FileDescriptor());
}

std::shared_ptr<void> JobState::hold_block(std::uint64_t block, const std::byte* base,
                                           std::size_t bytes, const FileDescriptor& file) {
  return blocks_->hold(block, base, bytes, file);
}

/// Workers that are bound to processors of their own may each have one alone.
void JobState::count_processors(const std::vector<Parcel>& parcels) {
  const RankSet& here = hosts_.neighbours(identity_.rank);
  std::set<int> all;
  for (const int rank : here.ranks()) {
    const Parcel& parcel = parcels[static_cast<std::size_t>(rank)];
    std::istringstream numbers(parcel.bytes.substr(first_line(parcel.bytes).size()));
    for (int number = 0; numbers >> number;) all.insert(number);
  }
  const int own = system_->processors();
  const bool has_quota = own < static_cast<int>(system_->allowed_processors().size());
  const int for_all = has_quota ? own : static_cast<int>(all.size());
  crowded_ = here.size() > for_all;
  processors_per_worker_ = std::max(1, for_all / here.size());
  if (crowded_) spin_rounds_ = kCrowdedRounds;
}

JobState::~JobState() {
  if (!is_own()) {
    // A child made by fork alone has the memory but not the threads: it must neither speak for this
    // worker nor wait for a thread it does not have.
    static_cast<void>(watch_.release());
    new (std::nothrow) std::shared_ptr<Rendezvous>(std::move(rendezvous_));
    return;
  }
  rendezvous_->when_alone({});
  warn_if_unused();
  if (!gone().died.empty()) leave_mpi_open();
  show(WorkerSlot::left);
}

/// Every Group draws a number. A job that a launcher has started has a name for its run.
void JobState::warn_if_unused() const {
  const bool is_used = !numbers_.empty() || identity_.size == 1 || identity_.run.empty();
  if (is_used || identity_.rank != 0 || std::uncaught_exceptions() > 0) return;
  log().warn(
      "{} workers have joined, and the program ends without a Group, a DataParallel or a Trainer: "
      "each has worked for itself alone; wrap the model in tutti::DataParallel, or train it by a "
      "tutti::Trainer",
      identity_.size);
}

void JobState::refuse_child() const {
  throw Unsupported(fmt::format(
      "rank {}'s job is used in a child that the worker made by fork(): only the worker "
      "itself takes part in it; let the child call nothing of Tutti, and use the job, "
      "its groups and what was made from them in the worker",
      identity_.rank));
}

void JobState::store(std::string message, const Haste& haste) {
  bytes_to_hosts_.fetch_add(message.size(), std::memory_order_relaxed);
  rendezvous_->store(std::move(message), haste);
}

Deadline JobState::deadline(std::optional<std::chrono::milliseconds> asked) const {
  if (asked) require_positive(*asked, "deadline");
  return Deadline::after(system_->now(), std::min(asked.value_or(options_.deadline), kForever));
}

std::uint64_t JobState::next_number(const std::string& key) {
  require_own();
  threads_.note();
  const std::lock_guard lock(mutex_);
  return numbers_[key]++;
}

bool JobState::is_news(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return logged_.insert(key).second;
}

JobState::Gone JobState::gone() const {
  Gone gone;
  for (int rank = 0; rank < identity_.size; ++rank) {
    const WorkerSlot& worker = slot(rank);
    const bool ended = worker.ended.load(std::memory_order_acquire) != 0;
    const bool left = worker.state.load(std::memory_order_acquire) == WorkerSlot::left;
    if (ended || left) gone.all.insert(rank);
    if (ended && !left) gone.died.insert(rank);
  }
  return gone;
}

std::optional<int> JobState::cut_off_by() const {
  if (!spans_hosts_) return {};
  const int by = board_->cut_off_by.load(std::memory_order_acquire);
  if (by != Board::kNobody) return by;
  if (!rendezvous_->reaches_hosts()) return hosts_.neighbours(identity_.rank).first();
  return {};
}

std::string JobState::text_of_cut(int by) const {
  if (hosts_.neighbours(identity_.rank).contains(by))
    return fmt::format("rank {} ended, through which its host reaches the others", by);
  return fmt::format(
      "rank {} ended or cannot be reached, through which the host of rank {} reaches the others",
      by, identity_.rank);
}

void JobState::require_hosts(const std::string& what) const {
  const auto by = cut_off_by();
  if (!by) return;
  const std::string text =
      fmt::format("{}: {} is not possible any more, and other hosts may resume without this one",
                  text_of_cut(*by), what);
  rendezvous_->blame(*by, text);
  throw PeerLost(*by, text);
}

std::optional<int> JobState::broker_that_lost(const RankSet& told, const Gone& gone) const {
  if (!spans_hosts_ || rendezvous_->reaches_hosts()) return {};
  const RankSet& neighbours = hosts_.neighbours(identity_.rank);
  const int first = neighbours.first();
  const auto is_lost = [&](int rank) {
    const WorkerSlot& worker = slot(rank);
    return neighbours.contains(rank) && worker.stores_done.load(std::memory_order_acquire) <
                                            worker.stores_sent.load(std::memory_order_acquire);
  };
  if (!gone.all.contains(first) || !std::ranges::all_of(told.ranks(), is_lost)) return {};
  return first;
}

}  // namespace tutti
