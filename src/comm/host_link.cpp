#include "comm/host_link.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/scoped_flag.h"
#include "comm/communicator.h"
#include "comm/link/link_engine.h"
#include "comm/local/group_lanes.h"
#include "job/gather.h"
#include "job/host_address.h"
#include "job/wire/board.h"
#include "job/wire/rank_set.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {

namespace {

/// The time in which the job itself finds out who has died (docs/clusters.md).
constexpr std::chrono::milliseconds kGrace{2500};
constexpr std::chrono::milliseconds kLook{5};

}  // namespace

HostLink::HostLink(Communicator& group, Options options)
    : group_(group), options_(std::move(options)) {}

HostLink::~HostLink() { drop(); }

void HostLink::connect(const std::function<void()>& check) {
  if (link_ || is_connecting_) return;
  const ScopedFlag connecting(is_connecting_);
  const auto firsts = group_.first_of_hosts(check);
  if (!firsts) return;
  JobState& job = firsts->job();
  const auto name =
      fmt::format("link {} of \"{}\"", job.next_number("link of " + options_.name), options_.name);
  int round = 0;
  const auto environment = Environment::read();
  note_link_engine_is_used();
  const auto engine = link_engine();
  spread_ = environment.lanes;
  const LinkRequest request{
      .name = name,
      .self = firsts->rank(),
      .peers = firsts->size(),
      .lanes = options_.lanes * spread_,
      .address = address_for_hosts(environment),
      .deadline = job.deadline(options_.deadline),
      .exchange = [&](const std::string& mine) {
        const auto tag = fmt::format("{}, round {}", name, round++);
        std::vector<std::string> all;
        for (auto& parcel : gather(job, tag, firsts->ranks(), {mine, {}}, [&] {
               group_.collectives().check();
               if (check) check();
             })) {
          all.push_back(std::move(parcel.bytes));
        }
        return all;
      }};
  try {
    require_one_engine(request.exchange(engine.name), firsts->ranks());
    link_ = engine.make(request);
  } catch (const std::exception& error) {
    throw_if_lost(*firsts, error, check);
    throw;
  }
  const auto counters = static_cast<std::size_t>(options_.lanes * firsts->size());
  sent_.assign(counters, 0);
  received_.assign(counters, 0);
  if (group_.rank() == 0 && job.is_news("the links between hosts")) log_choice(engine.reason);
}

/// A peer's end breaks connections before the job knows of it: throws PeerLost where that is what
/// the engine met.
void HostLink::throw_if_lost(const Communicator& firsts, const std::exception& error,
                             const std::function<void()>& check) const {
  // Whatever else is an error of Tutti's has a reason of its own.
  const bool is_own = dynamic_cast<const Error*>(&error) != nullptr;
  if (is_own && dynamic_cast<const IoError*>(&error) == nullptr) return;
  JobState& job = group_.job();
  for (const auto end = job.system().now() + kGrace; job.system().now() < end;) {
    const RankSet lost = job.gone().all & RankSet::of(firsts.ranks());
    if (!lost.empty()) {
      const auto text = fmt::format("\"{}\": rank {} ended while hosts made their link: {}",
                                    options_.name, lost.first(), error.what());
      job.rendezvous().blame(lost.first(), text);
      throw PeerLost(lost.first(), text);
    }
    job.require_hosts(options_.name);
    group_.collectives().check();
    if (check) check();
    std::this_thread::sleep_for(kLook);
  }
}

void HostLink::log_choice(const std::string& reason) {
  log().info("links between hosts: {}, {} for each kind of message ({}); {}", link_->description(),
             spread_, spread_ == kDefaultLanes ? "the default" : "TUTTI_LANES", reason);
}

int HostLink::next(std::vector<std::uint64_t>& turns, int lane, int host) {
  const auto counter = static_cast<std::size_t>(lane * link_->peers() + host);
  return lane * spread_ + static_cast<int>(turns[counter]++ % static_cast<unsigned>(spread_));
}

void HostLink::drop() noexcept {
  if (!group_.job().is_own()) {
    static_cast<void>(link_.release());  // of the worker that made this child: so are its threads
    return;
  }
  link_.reset();
  while (in_calls_ != 0) std::this_thread::yield();
  has_failed_ = false;
  failed_at_.reset();
}

void HostLink::send(int lane, int host, std::span<const std::byte> bytes,
                    std::function<void()> done) {
  link_->send(next(sent_, lane, host), host, bytes, then(std::move(done)));
}

void HostLink::receive(int lane, int host, std::span<std::byte> bytes, std::function<void()> done) {
  link_->receive(next(received_, lane, host), host, bytes, then(std::move(done)));
}

Link::Done HostLink::then(std::function<void()> done) {
  return [this, done = std::move(done)](const LinkError* error) {
    ++in_calls_;
    if (error != nullptr) {
      const std::lock_guard lock(failure_mutex_);
      if (!has_failed_) failure_ = *error;
      has_failed_ = true;
    } else if (done) {
      done();
    }
    announce(group_.job().board());
    --in_calls_;
  };
}

void HostLink::check() {
  if (!has_failed_) return;
  const auto now = group_.job().system().now();
  if (!failed_at_) failed_at_ = now;
  if (now < *failed_at_ + kGrace) return;
  const std::lock_guard lock(failure_mutex_);
  const int rank = group_.first_of_hosts()->ranks()[static_cast<std::size_t>(failure_.peer)];
  throw PeerLost(rank, fmt::format("\"{}\": the link to the host of rank {} has failed ({}): {}",
                                   options_.name, rank, link_->description(), failure_.text));
}

}  // namespace tutti
