#include "support/thread_ranks.h"

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "job/job_state.h"
#include "support/watchdog.h"
#include "tutti/error.h"

namespace tutti::test {

ThreadWorld::ThreadWorld(int size) {
  for (int rank = 0; rank < size; ++rank) lives_.emplace_back(::eventfd(0, EFD_CLOEXEC));
}

void ThreadWorld::kill(int rank) {
  ::eventfd_write(lives_[static_cast<std::size_t>(rank)].get(), 1);
  if (hosts_) hosts_->kill(rank);
}

ThreadSystem::ThreadSystem(std::shared_ptr<ThreadWorld> world, int rank,
                           const ThreadOptions& options)
    : world_(std::move(world)),
      host_(host_system()),
      rank_(rank),
      processors_(options.processors),
      memory_bounds_(options.memory_bounds),
      has_other_threads_(options.has_other_threads) {}

FileDescriptor ThreadSystem::create_memory(std::string_view name, std::size_t bytes) {
  return host_->create_memory(name, bytes);
}

std::shared_ptr<std::byte> ThreadSystem::map(const FileDescriptor& file, std::size_t bytes) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw std::runtime_error("fstat");
  const std::lock_guard lock(world_->mutex_);
  auto& known = world_->maps_[{status.st_dev, status.st_ino}];
  if (auto mapped = known.lock(); mapped && static_cast<std::size_t>(status.st_size) == bytes)
    return mapped;
  auto mapped = host_->map(file, bytes);
  known = mapped;
  return mapped;
}

FileDescriptor ThreadSystem::life_line() {
  return world_->lives_[static_cast<std::size_t>(rank_)].duplicate();
}

std::vector<MemoryBound> ThreadSystem::memory_bounds() const {
  return memory_bounds_ ? memory_bounds_() : host_->memory_bounds();
}

std::vector<int> ThreadSystem::allowed_processors() const {
  if (!processors_) return host_->allowed_processors();
  std::vector<int> all(static_cast<std::size_t>(*processors_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int ThreadSystem::processors() const { return processors_.value_or(host_->processors()); }

bool ThreadOutcome::all_good() const {
  return std::all_of(errors.begin(), errors.end(), [](const auto& error) { return !error; });
}

std::string ThreadOutcome::text(int rank) const {
  const auto& error = errors[static_cast<std::size_t>(rank)];
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

void ThreadOutcome::rethrow() const {
  std::exception_ptr echo;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const PeerLost&) {
      echo = echo ? echo : error;
    } catch (...) {
      throw;
    }
  }
  if (echo) std::rethrow_exception(echo);
}

ThreadOutcome try_thread_ranks(int size, const std::function<void(Job)>& body,
                               const ThreadOptions& options) {
  const Watchdog watchdog("a run of thread ranks", options.limit);
  const auto world = options.world ? options.world : std::make_shared<ThreadWorld>(size);
  const HostMap map = options.hosts ? *options.hosts : even_hosts(size, asked_hosts());
  // Brokers map memory where the ranks do: a sanitizer sees one memory of each host.
  if (map.hosts() > 1) world->spread(map, std::make_shared<ThreadSystem>(world, 0, options));
  ThreadOutcome outcome;
  outcome.errors.resize(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Identity identity{rank, size, options.threads};
        identity.hosts = map;
        body(Job(std::make_shared<JobState>(identity,
                                            std::make_shared<ThreadSystem>(world, rank, options),
                                            world->rendezvous(rank), options.job)));
      } catch (...) {
        outcome.errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  world->end_hosts();
  return outcome;
}

}  // namespace tutti::test
