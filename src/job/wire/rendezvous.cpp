#include "job/wire/rendezvous.h"

#include "base/check.h"

namespace tutti {

void Rendezvous::hold_block(std::uint64_t block, const FileDescriptor&, std::size_t) {
  TUTTI_CHECK(false, "block {} is held in a job of one host", block);
}

void Rendezvous::let_go_block(std::uint64_t) noexcept {}

// NOLINTNEXTLINE(performance-unnecessary-value-param): where there are hosts, it is moved on.
void Rendezvous::store(std::string message, const Haste&) {
  TUTTI_CHECK(false, "{} bytes of stores in a job of one host", message.size());
}

}  // namespace tutti
