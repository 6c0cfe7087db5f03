#include "comm/link/link_engine.h"

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "comm/link/mpi_link.h"
#include "tutti/environment.h"
#include "tutti/error.h"

namespace tutti {
namespace {

struct Engine {
  std::mutex mutex;
  LinkEngine current;
  LinkEngine (*offer)() = nullptr;
  bool is_used = false;
};

Engine& engine() {
  static Engine only;
  return only;
}

}  // namespace

void set_link_engine(LinkEngine next) {
  const std::lock_guard lock(engine().mutex);
  engine().current = std::move(next);
}

void offer_link_engine(LinkEngine (*make)()) {
  const std::lock_guard lock(engine().mutex);
  engine().offer = make;
}

LinkEngine link_engine() {
  const std::lock_guard lock(engine().mutex);
  auto& current = engine().current;
  if (!current.name.empty()) return current;
  const auto asked = Environment::read().link;
  if (asked == "mpi") return mpi_link_engine();
  auto none = current;
  if (asked == "hub") {
    none.reason = "TUTTI_LINK is hub";
    return none;
  }
  if (engine().offer != nullptr) return current = engine().offer();
  if (asked == "gloo") {
    throw Unsupported(
        "TUTTI_LINK is gloo, but this program has no Gloo: it is not linked with libtorch's half "
        "of Tutti (tutti::tutti)");
  }
  return none;
}

std::optional<std::size_t> without_engine(std::span<const std::string> names,
                                          std::span<const int> ranks) {
  std::optional<std::size_t> without;
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      if (!without) without = i;
    } else if (!first) {
      first = i;
    } else if (names[i] != names[*first]) {
      throw Mismatch(fmt::format(
          "links between hosts are made by different engines: rank {} has {}, rank {} has {}",
          ranks[*first], names[*first], ranks[i], names[i]));
    }
  }
  return without;
}

bool link_engine_is_used() {
  const std::lock_guard lock(engine().mutex);
  return engine().is_used;
}

void note_link_engine_is_used() {
  const std::lock_guard lock(engine().mutex);
  engine().is_used = true;
}

}  // namespace tutti
