#include "sync/step_board.h"

#include "memory/arena.h"

namespace tutti {
namespace {

constexpr std::size_t line_up(std::size_t bytes) { return round_up(bytes, kCacheLine); }

struct Offsets {
  std::size_t ready, digests, order, weights, slots, end;
  Offsets(std::size_t parameters, std::size_t buffers) {
    ready = line_up(sizeof(StepHeader));
    digests = ready + line_up(parameters * sizeof(std::uint64_t));
    order = digests + line_up((parameters + buffers) * sizeof(std::uint64_t));
    weights = order + line_up(parameters * sizeof(std::uint32_t));
    slots = weights + kMaxSlots * line_up(parameters * sizeof(double));
    end = slots + (kMaxSlots + 1) * line_up(parameters);
  }
};

}  // namespace

// The memory is zero-filled, which is the initial state of every field.
StepBoard::StepBoard(std::byte* block, std::size_t parameters, std::size_t buffers)
    : parameters_(parameters), buffers_(buffers) {
  const Offsets at(parameters, buffers);
  header_ = reinterpret_cast<StepHeader*>(block);
  ready_ = reinterpret_cast<std::atomic<std::uint64_t>*>(block + at.ready);
  digests_ = reinterpret_cast<std::uint64_t*>(block + at.digests);
  order_ = reinterpret_cast<std::uint32_t*>(block + at.order);
  weights_ = reinterpret_cast<double*>(block + at.weights);
  slots_ = reinterpret_cast<std::uint8_t*>(block + at.slots);
}

std::size_t StepBoard::bytes(std::size_t parameters, std::size_t buffers) {
  return Offsets(parameters, buffers).end;
}

std::uint8_t* StepBoard::slot_table(int node) const {
  return slots_ + static_cast<std::size_t>(node) * line_up(parameters_);
}

double* StepBoard::weights(int node) const {
  return reinterpret_cast<double*>(reinterpret_cast<std::byte*>(weights_) +
                                   static_cast<std::size_t>(node) *
                                       line_up(parameters_ * sizeof(double)));
}

std::vector<StepBoard> boards_of(const SharedMemory& memory, int workers, const Plan& plan) {
  std::vector<StepBoard> boards;
  for (int r = 0; r < workers; ++r) {
    boards.emplace_back(memory.block(r), plan.parameters().size(), plan.buffers().size());
  }
  return boards;
}

}  // namespace tutti
