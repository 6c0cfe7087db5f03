#include "comm/link/link_engine.h"

#include <mutex>
#include <utility>

namespace tutti {
namespace {

struct Engine {
  std::mutex mutex;
  LinkEngine current;
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

LinkEngine link_engine() {
  const std::lock_guard lock(engine().mutex);
  return engine().current;
}

}  // namespace tutti
