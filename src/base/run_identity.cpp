#include "base/run_identity.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <random>

namespace tutti {

std::string draw_run_identity() {
  std::random_device system;
  return fmt::format("{:08x}{:08x}", system(), system());
}

std::string derive_run_identity(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace tutti
