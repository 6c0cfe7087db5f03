#include "base/run_identity.h"

#include <fmt/format.h>

#include <random>

namespace tutti {

std::string draw_run_identity() {
  std::random_device system;
  return fmt::format("{:08x}{:08x}", system(), system());
}

}  // namespace tutti
