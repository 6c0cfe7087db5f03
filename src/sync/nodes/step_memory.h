#pragma once

// The control memory of a step: what its workers tell each other of it, in sections that each
// object of the step adds for itself. It is memory of the host. Gradients, their sums and messages
// lie in blocks of their own (Group::allocate()), and no address of those follows from one here.
//
// Threads: one. Failure: OutOfMemory when there is no memory.

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "comm/group_state.h"
#include "job/publish.h"
#include "memory/sections.h"
#include "tutti/group.h"

namespace tutti {

class StepMemory;

/// A Part for each worker, by rank, which that worker writes.
template <class Part>
class WorkerParts : public std::vector<Part> {
 public:
  explicit WorkerParts(const StepMemory& memory) : memory_(&memory) {}
  const StepMemory& memory() const { return *memory_; }
  const Part& of(int rank) const { return (*this)[static_cast<std::size_t>(rank)]; }
  const Part& mine() const;

 private:
  const StepMemory* memory_;
};

class StepMemory {
 public:
  /// Allocates nothing yet.
  StepMemory(Group group, const std::string& name);
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  const Group& group() const { return group_; }
  int rank() const { return rank_; }
  JobState& job() const { return group_.state()->job(); }

  // A Part(Sections&, args…) takes its sections from zero-filled memory, which has to be the
  // initial state of their values. All workers add the same, in the same order: collective. Parts
  // must not be used after this object.

  template <class Part, class... Args>
  WorkerParts<Part> add(const Args&... args) {
    WorkerParts<Part> parts(*this);
    for (auto* const block : room(bytes_of_sections<Part>(args...))) {
      Sections at(block);
      parts.emplace_back(at, args...);
    }
    return parts;
  }
  /// One part for all workers of a host.
  template <class Part, class... Args>
  Part add_common(const Args&... args) {
    Sections at(room(bytes_of_sections<Part>(args...)).front());
    return Part(at, args...);
  }

  /// Sends values that this worker has written in memory of the group to other hosts, ahead of what
  /// it publishes from now on: few bytes, as all pass through the host of rank 0.
  void send(std::span<const PublishedData> data) const { send_ahead(job(), data); }
  void send(std::initializer_list<PublishedData> data) const { send_ahead(job(), data); }

 private:
  /// So many bytes in the block of each worker.
  std::vector<std::byte*> room(std::size_t bytes);

  Group group_;
  int rank_;
  std::string name_;
  std::vector<SharedMemory> arenas_;
  std::size_t used_ = 0;  ///< bytes of the last arena's blocks
};

template <class Part>
const Part& WorkerParts<Part>::mine() const {
  return of(memory_->rank());
}

}  // namespace tutti
