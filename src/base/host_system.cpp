#include <fcntl.h>
#include <linux/memfd.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include <fmt/format.h>

#include "base/file_descriptor.h"
#include "base/helper_thread.h"
#include "base/limits.h"
#include "base/system.h"
#include "tutti/error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace tutti {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
/// Processors tell cache lines apart by a hash of some address bits before they compare addresses
/// (AMD's linear-address tags: none above bit 27). Two blocks that are read and written in step, as
/// an all-reduce does, must not lie a multiple of this apart: measured at a fifth of the speed.
constexpr std::size_t kLookalike = std::size_t{256} << 20;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

int open_memory(const std::string& name) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd =
      static_cast<int>(::syscall(SYS_memfd_create, name.c_str(), flags | MFD_NOEXEC_SEAL));
  if (fd >= 0 || errno != EINVAL) return fd;
  // Linux before 6.3 knows no MFD_NOEXEC_SEAL.
  return static_cast<int>(::syscall(SYS_memfd_create, name.c_str(), flags));
}

constexpr int kMaxProcessors = 1 << 16;  // a fixed cpu_set_t ends at 1024

std::vector<int> affinity() {
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(kMaxProcessors / kWordBits);
  const std::size_t bytes = mask.size() * sizeof(unsigned long);
  std::vector<int> allowed;
  if (::sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(mask.data())) == 0) {
    for (int p = 0; p < kMaxProcessors; ++p)
      if ((mask[static_cast<std::size_t>(p / kWordBits)] >> (p % kWordBits) & 1UL) != 0)
        allowed.push_back(p);
  }
  if (allowed.empty()) allowed.push_back(0);
  return allowed;
}

/// The n-th large mapping starts n huge pages beyond a multiple of kLookalike, so that equal
/// offsets in up to 128 blocks look different. MAP_FAILED as from mmap.
void* map_apart(int fd, std::size_t bytes, std::size_t n) {
  const auto shift = n * kHugePage % kLookalike;
  const auto room = bytes + 2 * kLookalike;
  auto* const reserved = static_cast<std::byte*>(
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  constexpr int kUse = PROT_READ | PROT_WRITE;
  // Any address is acceptable where address space is limited.
  if (reserved == MAP_FAILED) return ::mmap(nullptr, bytes, kUse, MAP_SHARED, fd, 0);
  const auto address = reinterpret_cast<std::uintptr_t>(reserved);
  const auto before = (kLookalike - address % kLookalike) % kLookalike + shift;
  auto* const at = reserved + before;
  void* const mapped = ::mmap(at, bytes, kUse, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    ::munmap(reserved, room);
    return mapped;
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));  // ARM: also 16 or 64 KiB
  const auto after = (bytes + page - 1) / page * page;
  if (before > 0) ::munmap(reserved, before);
  ::munmap(at + after, room - before - after);
  return mapped;
}

class HostSystem final : public System {
 public:
  Clock::time_point now() const override { return Clock::now(); }

  FileDescriptor create_memory(std::string_view name, std::size_t bytes) override {
    if (bytes == 0) throw InvalidArgument(fmt::format("shared memory \"{}\" of 0 bytes", name));
    const auto fail = [&](const char* doing) {
      return OutOfMemory(fmt::format("cannot {} shared memory \"{}\" of {} bytes: {}", doing, name,
                                     bytes, error_text(errno)));
    };
    // The kernel takes names of up to 249 bytes.
    FileDescriptor file(open_memory(fmt::format("tutti {}", name.substr(0, 200))));
    if (!file) throw fail("create");
    if (::fchmod(file.get(), 0600) != 0) throw fail("protect");
    if (bytes > static_cast<std::size_t>(PTRDIFF_MAX)) {
      errno = EFBIG;
      throw fail("size");
    }
    // Beyond this limit the kernel would not only refuse, but end the process with SIGXFSZ.
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
      throw OutOfMemory(fmt::format(
          "cannot size shared memory \"{}\" of {} bytes: this process may write files of "
          "{} bytes at most, and the system counts shared memory as one; raise "
          "`ulimit -f`",
          name, bytes, limit.rlim_cur));
    if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) throw fail("size");
    if (::fcntl(file.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) throw fail("seal");
    return file;
  }

  std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) override {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0)
      throw IoError(errno, fmt::format("cannot map shared memory: {}", error_text(errno)));
    if (bytes == 0 || static_cast<std::size_t>(status.st_size) != bytes)
      throw InvalidArgument(
          fmt::format("shared memory of {} bytes has to be mapped, but the file has {}", bytes,
                      status.st_size));
    // A file that another process may shrink would end this one with SIGBUS.
    if ((::fcntl(file.get(), F_GET_SEALS) & kSizeSeals) != kSizeSeals)
      throw InvalidArgument("shared memory is not sealed against resizing");
    void* at = bytes < kHugePage
                   ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0)
                   : map_apart(file.get(), bytes, large_maps_.fetch_add(1));
    if (at == MAP_FAILED)
      throw OutOfMemory(
          fmt::format("cannot map {} bytes of shared memory: {}", bytes, error_text(errno)));
    // A worker's core dump would hold the memory of all, and put off the notice of its end.
    ::madvise(at, bytes, MADV_DONTDUMP);
    if (bytes >= kHugePage) ::madvise(at, bytes, MADV_HUGEPAGE);  // where the system gives them
    return {static_cast<std::byte*>(at), [bytes](std::byte* p) { ::munmap(p, bytes); }};
  }

  FileDescriptor life_line() override {
#ifdef SYS_pidfd_open
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
#else
    const int fd = -1;
    errno = ENOSYS;
#endif
    if (fd < 0)
      throw Unsupported(fmt::format(
          "this kernel offers no descriptor of a process (pidfd_open: {}), by which workers learn "
          "of each other's end; Linux 5.3 or later is needed, and a sandbox must allow the call",
          error_text(errno)));
    return FileDescriptor(fd);
  }

  bool has_other_threads() const override { return other_threads() > 0; }

  std::vector<MemoryBound> memory_bounds() const override { return read_memory_bounds("/"); }

  std::vector<MemoryBound> own_memory_bounds() const override { return read_own_memory_bounds(); }

  std::vector<int> allowed_processors() const override { return affinity(); }

  int processors() const override {
    const auto allowed = static_cast<int>(affinity().size());
    return std::max(1, std::min(allowed, read_processor_quota("/").value_or(allowed)));
  }

 private:
  std::atomic<std::size_t> large_maps_{0};
};

}  // namespace

std::shared_ptr<System> host_system() { return std::make_shared<HostSystem>(); }

}  // namespace tutti
