#include "comm/link/link_engine.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "comm/link/mpi_link.h"
#include "comm/link/tcp_link.h"
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
  if (asked == "tcp") return tcp_link_engine("TUTTI_LINK is tcp");
  if (engine().offer != nullptr) return current = engine().offer();
  if (asked == "gloo") {
    throw Unsupported(
        "TUTTI_LINK is gloo, but this program has no Gloo: it is not linked with libtorch's half "
        "of Tutti (tutti::tutti)");
  }
  return tcp_link_engine("TUTTI_LINK is auto, and this program has no Gloo");
}

void require_one_engine(std::span<const std::string> names, std::span<const int> ranks) {
  const auto other =
      std::ranges::find_if(names, [&](const auto& name) { return name != names[0]; });
  if (other == names.end()) return;
  throw Mismatch(fmt::format(
      "links between hosts are made by different engines: rank {} has {}, rank {} has {} "
      "(TUTTI_LINK, tutti::use_link())",
      ranks[0], names[0], ranks[static_cast<std::size_t>(other - names.begin())], *other));
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
