#include "base/process_mark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace tutti {
namespace {

constexpr std::size_t kMarkBytes = sizeof(std::atomic<std::uint32_t>);

}  // namespace

ProcessMark::ProcessMark() noexcept : pid_(::getpid()) {
  void* const page =
      ::mmap(nullptr, kMarkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, kMarkBytes, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kMarkBytes);
    return;
  }
  page_ = new (page) std::atomic<std::uint32_t>(1);
}

ProcessMark::~ProcessMark() {
  if (page_ != nullptr) ::munmap(page_, kMarkBytes);
}

bool ProcessMark::has_same_pid() const noexcept { return pid_ == ::getpid(); }

}  // namespace tutti
