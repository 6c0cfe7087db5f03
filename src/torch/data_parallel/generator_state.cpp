#include "torch/data_parallel/generator_state.h"

#include "kernels/hash.h"

namespace tutti {
namespace {

std::uint64_t state_digest(const at::Generator& generator) {
  const auto state = generator.get_state();
  return digest(state.data_ptr(), state.nbytes());
}

}  // namespace

GeneratorGuard::GeneratorGuard()
    : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {}

GeneratorGuard::~GeneratorGuard() { generator_.set_state(state_); }

GeneratorMark::GeneratorMark() {
  const auto generator = at::detail::getDefaultCPUGenerator();
  seed_ = generator.current_seed();
  state_ = state_digest(generator);
}

GeneratorMark::Position GeneratorMark::position() const {
  const auto seed = at::detail::getDefaultCPUGenerator().current_seed();
  return {seed, seed == seed_ ? state_ : 0};
}

}  // namespace tutti
