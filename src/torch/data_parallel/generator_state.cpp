#include "torch/data_parallel/generator_state.h"

#include "kernels/hash.h"
#include "torch/model/generators.h"

namespace tutti {
namespace {

std::uint64_t state_digest(const at::Generator& generator) {
  const auto state = generator_state_of(generator);
  return digest(state.data_ptr(), state.nbytes());
}

}  // namespace

GeneratorGuard::GeneratorGuard()
    : generator_(default_generator()), state_(generator_state_of(generator_)) {}

GeneratorGuard::~GeneratorGuard() { set_generator_state(generator_, state_); }

GeneratorMark::GeneratorMark() {
  const auto generator = default_generator();
  seed_ = generator.current_seed();
  state_ = state_digest(generator);
}

GeneratorMark::Position GeneratorMark::position() const {
  const auto seed = default_generator().current_seed();
  return {seed, seed == seed_ ? state_ : 0};
}

}  // namespace tutti
