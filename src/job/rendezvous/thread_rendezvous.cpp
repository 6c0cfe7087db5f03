#include "job/rendezvous/thread_rendezvous.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/check.h"
#include "job/rendezvous/gather_table.h"
#include "job/rendezvous/patient_wait.h"
#include "job/wire/rank_set.h"

namespace tutti {

struct ThreadRendezvous::State {
  std::mutex mutex;
  std::condition_variable told_someone;
  GatherTable table;
  std::map<std::pair<int, std::uint64_t>, GatherOutcome> told;  // by rank and request
  std::uint64_t requests = 0;
  std::vector<Blame> blames;

  void tell(std::vector<GatherOutcome> outcomes) {
    for (auto& outcome : outcomes) {
      const auto key = std::make_pair(outcome.rank, outcome.request);
      told[key] = std::move(outcome);
    }
    told_someone.notify_all();
  }
};

class ThreadRendezvous::Side final : public Rendezvous {
 public:
  Side(std::shared_ptr<State> state, int rank) : state_(std::move(state)), rank_(rank) {}
  ~Side() override {
    const std::lock_guard lock(state_->mutex);
    state_->tell(state_->table.end(rank_));
  }

  using Rendezvous::all_gather;
  std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks, Parcel mine,
                                 Deadline deadline, const Patience& patience) override {
    TUTTI_CHECK(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(),
                "rank {} gathers \"{}\" among ranks it is not one of", rank_, tag);
    std::unique_lock lock(state_->mutex);
    const auto key = std::make_pair(rank_, ++state_->requests);
    state_->tell(state_->table.give(rank_, key.second, tag, RankSet::of(ranks), std::move(mine)));
    const auto told = [&] { return state_->told.count(key) != 0; };
    if (!wait_patiently(lock, state_->told_someone, told, deadline, patience)) {
      state_->tell(state_->table.give_up(rank_, key.second));
      TUTTI_CHECK(told(), "a request that was given up has no outcome");
    }
    const GatherOutcome outcome = std::move(state_->told.extract(key).mapped());
    lock.unlock();
    if (!outcome.parcels) throw_failure(outcome);
    std::vector<Parcel> parcels;
    for (const Parcel& parcel : *outcome.parcels) {
      Parcel copy{parcel.bytes, {}};
      for (const FileDescriptor& file : parcel.descriptors)
        copy.descriptors.push_back(file.duplicate());
      parcels.push_back(std::move(copy));
    }
    return parcels;
  }

  void report_end(int rank) noexcept override try {
    const std::lock_guard lock(state_->mutex);
    state_->tell(state_->table.end(rank));
  } catch (...) {  // without memory the deadline ends the wait
  }

  void blame(int culprit, const std::string& text) noexcept override try {
    const std::lock_guard lock(state_->mutex);
    state_->blames.push_back({rank_, culprit, text});
  } catch (...) {  // without memory nothing can be reported
  }

 private:
  std::shared_ptr<State> state_;
  int rank_;
};

ThreadRendezvous::ThreadRendezvous() : state_(std::make_shared<State>()) {}

std::unique_ptr<Rendezvous> ThreadRendezvous::rendezvous(int rank) const {
  return std::make_unique<Side>(state_, rank);
}

std::vector<Blame> ThreadRendezvous::blames() const {
  const std::lock_guard lock(state_->mutex);
  return state_->blames;
}

}  // namespace tutti
