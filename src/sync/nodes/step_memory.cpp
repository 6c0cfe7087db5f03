#include "sync/nodes/step_memory.h"

#include <utility>

#include <fmt/format.h>

namespace tutti {
namespace {

/// Address space of an arena beyond what it is made for: small parts share one.
constexpr std::size_t kSpare = std::size_t{1} << 20;
/// What a worker is taken to touch of its block: sections have room for the largest case.
constexpr std::size_t kNeeded = std::size_t{1} << 16;

}  // namespace

StepMemory::StepMemory(Group group, const std::string& name)
    : group_(std::move(group)),
      rank_(group_.rank()),
      name_(fmt::format("step memory of \"{}\"", name)) {}

std::vector<std::byte*> StepMemory::room(std::size_t bytes) {
  if (arenas_.empty() || bytes > arenas_.back().bytes() - used_) {
    arenas_.push_back(group_.allocate(bytes + kSpare, name_, kNeeded));
    used_ = 0;
  }
  std::vector<std::byte*> blocks;
  for (int r = 0; r < group_.size(); ++r) blocks.push_back(arenas_.back().block(r) + used_);
  used_ += bytes;
  return blocks;
}

}  // namespace tutti
