#include "sync/nodes/step_board.h"

#include "memory/arena.h"

namespace tutti {
namespace {

constexpr std::size_t line_up(std::size_t bytes) { return round_up(bytes, kCacheLine); }

struct Offsets {
  std::size_t ready, digests, order, weights, slots, modes, end;
  Offsets(std::size_t parameters, std::size_t buffers, std::size_t modules) {
    ready = line_up(sizeof(StepHeader));
    digests = ready + line_up(parameters * sizeof(std::uint64_t));
    order = digests + line_up((parameters + buffers) * sizeof(std::uint64_t));
    weights = order + line_up(parameters * sizeof(std::uint32_t));
    slots = weights + kMaxSlots * line_up(parameters * sizeof(double));
    modes = slots + (kMaxSlots + 1) * line_up(parameters);
    end = modes + line_up(modules);
  }
};

}  // namespace

// The memory is zero-filled, which is the initial state of every field.
StepBoard::StepBoard(std::byte* block, std::size_t parameters, std::size_t buffers,
                     std::size_t modules)
    : parameters_(parameters), buffers_(buffers), modules_(modules) {
  const Offsets at(parameters, buffers, modules);
  header_ = reinterpret_cast<StepHeader*>(block);
  ready_ = reinterpret_cast<std::atomic<std::uint64_t>*>(block + at.ready);
  digests_ = reinterpret_cast<std::uint64_t*>(block + at.digests);
  order_ = reinterpret_cast<std::uint32_t*>(block + at.order);
  weights_ = reinterpret_cast<double*>(block + at.weights);
  slots_ = reinterpret_cast<std::uint8_t*>(block + at.slots);
  modes_ = reinterpret_cast<std::uint8_t*>(block + at.modes);
}

std::size_t StepBoard::bytes(std::size_t parameters, std::size_t buffers, std::size_t modules) {
  return Offsets(parameters, buffers, modules).end;
}

std::uint8_t* StepBoard::slot_table(int node) const {
  return slots_ + static_cast<std::size_t>(node) * line_up(parameters_);
}

double* StepBoard::weights(int node) const {
  return reinterpret_cast<double*>(reinterpret_cast<std::byte*>(weights_) +
                                   static_cast<std::size_t>(node) *
                                       line_up(parameters_ * sizeof(double)));
}

std::vector<StepBoard> boards_of(const SharedMemory& memory, int workers, const Plan& plan,
                                 std::size_t modules) {
  std::vector<StepBoard> boards;
  for (int r = 0; r < workers; ++r) {
    boards.emplace_back(memory.block(r), plan.parameters().size(), plan.buffers().size(), modules);
  }
  return boards;
}

}  // namespace tutti
