// Facts that need no libtorch. Usage: facts_cuda device|host|pcie|ipc|fold ; JSON lines on stdout.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "facts_emit.h"
#include "facts_fold.h"

extern "C" {
cudaError_t fold_adam_exact(int, const Sources*, float, const Adam*, float*, float*, float*, std::int64_t, int, int, cudaStream_t);
cudaError_t fold_adam_contracted(int, const Sources*, float, const Adam*, float*, float*, float*, std::int64_t, int, int, cudaStream_t);
bool host_fold_adam(int, const Sources*, float, const Adam*, float*, float*, float*, std::int64_t, std::int64_t);
void host_add(const float*, const float*, float*, std::int64_t, std::int64_t);
}
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif

namespace {
constexpr std::size_t kKiB = 1024, kMiB = kKiB * kKiB, kGiB = kKiB * kMiB;
constexpr double kGB = 1e9;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + " (" + std::to_string(static_cast<int>(error)) + ")");
  }
}
#define CHECK(call) check((call), #call)
void check_system(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}
/// Runs one item; what it throws becomes a fact.
void item(const char* part, const char* name, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    note(part, std::string("error.") + name, error.what());
  }
}

__global__ void nothing() {}
__global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}
__global__ void copy4(const float4* from, float4* to, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count; i += std::int64_t(gridDim.x) * blockDim.x) to[i] = from[i];
}
__global__ void fill_pattern(unsigned* at, std::int64_t count, unsigned seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count; i += std::int64_t(gridDim.x) * blockDim.x) {
    at[i] = static_cast<unsigned>(i) * 2654435761U + seed;
  }
}
__global__ void count_other(const unsigned* at, std::int64_t count, unsigned seed, unsigned long long* other) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count; i += std::int64_t(gridDim.x) * blockDim.x) {
    if (at[i] != static_cast<unsigned>(i) * 2654435761U + seed) atomicAdd(other, 1ULL);
  }
}
/// How many words of device memory differ from the pattern.
unsigned long long others(const void* at, std::size_t bytes, unsigned seed) {
  unsigned long long *on_device = nullptr, result = 0;
  CHECK(cudaMalloc(&on_device, sizeof *on_device));
  CHECK(cudaMemset(on_device, 0, sizeof *on_device));
  count_other<<<264, 256>>>(static_cast<const unsigned*>(at), static_cast<std::int64_t>(bytes / 4), seed, on_device);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&result, on_device, sizeof result, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(on_device));
  return result;
}
void fill(void* at, std::size_t bytes, unsigned seed) {
  fill_pattern<<<264, 256>>>(static_cast<unsigned*>(at), static_cast<std::int64_t>(bytes / 4), seed);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
}
bool host_has_pattern(const void* at, std::size_t bytes, unsigned seed) {
  const auto* const word = static_cast<const unsigned*>(at);
  for (std::size_t i = 0; i < bytes / 4; i += 97) {
    if (word[i] != static_cast<unsigned>(i) * 2654435761U + seed) return false;
  }
  return true;
}

/// Median milliseconds of device work between two events.
template <class Work>
double event_ms(int times, const Work& work) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  work();
  std::vector<double> all;
  for (int k = 0; k < times; ++k) {
    CHECK(cudaEventRecord(begin));
    work();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    all.push_back(ms);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return median(all);
}

template <class Work>
void in_threads(int threads, std::int64_t count, const Work& work) {  // work(begin, end)
  std::vector<std::thread> all;
  const auto bound = [&](int k) { return count / 16 * k / threads * 16; };
  for (int k = 0; k < threads; ++k) {
    const auto begin = bound(k), end = k + 1 == threads ? count : bound(k + 1);
    all.emplace_back([&work, begin, end] { work(begin, end); });
  }
  for (auto& thread : all) thread.join();
}

// ---- d: device and host memory rates ----

void device_part() {
  item("d", "device_copy", [] {
    for (const std::size_t bytes : {256 * kMiB, kGiB}) {
      void *a = nullptr, *b = nullptr;
      CHECK(cudaMalloc(&a, bytes));
      CHECK(cudaMalloc(&b, bytes));
      fill(a, bytes, 1);
      const auto name = std::to_string(bytes / kMiB) + "MiB";
      const auto ms = event_ms(9, [&] { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice)); });
      emit("d", "d2d_memcpy." + name, 2.0 * bytes / ms / 1e6, "GB/s read+written");
      for (const int blocks : {528, 1056, 2112, 1 << 16}) {
        const auto kernel = event_ms(9, [&] {
          copy4<<<blocks, 256>>>(static_cast<const float4*>(a), static_cast<float4*>(b), static_cast<std::int64_t>(bytes / 16));
          CHECK(cudaGetLastError());
        });
        emit("d", "d2d_kernel." + name + ".blocks" + std::to_string(blocks), 2.0 * bytes / kernel / 1e6, "GB/s read+written");
      }
      CHECK(cudaFree(a));
      CHECK(cudaFree(b));
    }
  });
}

Adam plain_adam() {
  Adam by{};
  by.beta1 = 0.9F, by.fresh1 = static_cast<float>(1 - 0.9), by.beta2 = 0.999F, by.fresh2 = static_cast<float>(1 - 0.999);
  by.epsilon = 1e-8F, by.rate = static_cast<float>(1e-2 / (1 - std::pow(0.9, 3))), by.root = static_cast<float>(std::sqrt(1 - std::pow(0.999, 3)));
  by.kept = static_cast<float>(1 - 1e-2 * 0.01), by.decay = 0.01F;
  return by;
}

void host_part() {
  constexpr std::int64_t count = 64 << 20;  // floats: 256 MiB an array
  const std::size_t bytes = count * sizeof(float);
  for (const std::string kind : {"anonymous", "anonymous_thp", "memfd"}) {
    item("d", ("host_" + kind).c_str(), [&] {
      std::vector<float*> at;
      for (int k = 0; k < 4; ++k) {
        void* p = MAP_FAILED;
        if (kind == "memfd") {
          const int file = static_cast<int>(::syscall(SYS_memfd_create, "facts", 1U));
          check_system(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0, "memfd");
          p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
          ::close(file);
        } else {
          p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          if (p != MAP_FAILED) ::madvise(p, bytes, kind == "anonymous" ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
        }
        check_system(p != MAP_FAILED, "mmap");
        at.push_back(static_cast<float*>(p));
      }
      const double begin = now();
      in_threads(16, count, [&](std::int64_t from, std::int64_t to) {
        for (auto i = from; i < to; ++i) {
          for (int k = 0; k < 4; ++k) at[static_cast<std::size_t>(k)][i] = 1e-3F * static_cast<float>((i + k) % 1000 + 1);
        }
      });
      emit("d", "host_first_touch." + kind + ".16threads", 4.0 * bytes / (now() - begin) / kGB, "GB/s");
      for (const int threads : {1, 2, 4, 8, 16}) {
        const auto add = seconds_of(5, [&] {
          in_threads(threads, count, [&](std::int64_t from, std::int64_t to) { host_add(at[0], at[1], at[2], from, to); });
        });
        emit("d", "host_add." + kind + "." + std::to_string(threads) + "threads", 3.0 * bytes / add / kGB, "GB/s read+written (no RFO)");
        if (kind == "anonymous_thp") continue;
        Sources s{};
        s.node[0] = at[0];
        const auto by = plain_adam();
        const auto adam = seconds_of(5, [&] {
          in_threads(threads, count, [&](std::int64_t from, std::int64_t to) { host_fold_adam(1, &s, 8, &by, at[1], at[2], at[3], from, to); });
        });
        emit("d", "host_fold_adam." + kind + "." + std::to_string(threads) + "threads", 7.0 * bytes / adam / kGB, "GB/s of 7 S");
      }
      for (auto* const p : at) ::munmap(p, bytes);
    });
  }
}

// ---- c: pinned memory ----

struct Mapping {
  void* at = nullptr;
  std::size_t bytes = 0;
  int file = -1;
  void close() {
    if (at != nullptr) ::munmap(at, bytes);
    if (file >= 0) ::close(file);
    at = nullptr, file = -1;
  }
};
Mapping map_of(const std::string& kind, std::size_t bytes) {
  Mapping m;
  m.bytes = bytes;
  if (kind.rfind("memfd", 0) == 0) {
    m.file = static_cast<int>(::syscall(SYS_memfd_create, "facts", kind.find("hugetlb") != std::string::npos ? (1U | MFD_HUGETLB) : 1U));
    check_system(m.file >= 0, "memfd_create");
    check_system(::ftruncate(m.file, static_cast<off_t>(bytes)) == 0, "ftruncate");
    m.at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m.file, 0);
  } else {
    m.at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (m.at == MAP_FAILED) {
    m.at = nullptr;
    const int error = errno;
    if (m.file >= 0) ::close(m.file);
    throw std::runtime_error(std::string("mmap ") + kind + ": " + std::strerror(error));
  }
  if (kind.find("thp") != std::string::npos && ::madvise(m.at, bytes, MADV_HUGEPAGE) != 0) {
    note("c", "madvise." + kind, std::strerror(errno));
  }
  return m;
}
std::string meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return line.substr(key.size() + 1);
  }
  return "?";
}

double rate_of(void* host, void* device, std::size_t bytes, bool to_host, cudaStream_t stream, bool pageable) {
  const int copies = static_cast<int>(std::max<std::size_t>(1, std::min<std::size_t>(pageable ? 16 : 64, 256 * kMiB / bytes)));
  const auto seconds = seconds_of(7, [&] {
    for (int k = 0; k < copies; ++k) {
      CHECK(to_host ? cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream) : cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
  });
  return static_cast<double>(copies) * static_cast<double>(bytes) / seconds / kGB;
}

void send_byte(int socket, char value) { check_system(::send(socket, &value, 1, MSG_NOSIGNAL) == 1, "send"); }
char receive_byte(int socket) {
  char value = 0;
  check_system(::recv(socket, &value, 1, MSG_WAITALL) == 1, "recv");
  return value;
}
void limit_waits(int socket) {
  const timeval limit{20, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

struct SecondProcess {
  pid_t process;
  int socket;  // to it
};

// A process of its own runs `body` with its end of a socket.
template <class Body>
SecondProcess second_process(const Body& body) {
  int ends[2];
  check_system(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  const auto process = ::fork();
  if (process == 0) {
    ::close(ends[0]);
    try {
      body(ends[1]);
    } catch (...) {
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  return {process, ends[0]};
}

void pcie_child(int socket, void* shared_at, std::size_t bytes) {  // registers the same memfd in its own process
  receive_byte(socket);
  std::string text = "ok";
  void* device = nullptr;
  cudaStream_t stream = nullptr;
  try {
    CHECK(cudaFree(nullptr));
    CHECK(cudaHostRegister(shared_at, bytes, cudaHostRegisterPortable));
    CHECK(cudaMalloc(&device, bytes / 2));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fill(device, bytes / 2, 77);
    CHECK(cudaMemcpy(static_cast<char*>(shared_at) + bytes / 2, device, bytes / 2, cudaMemcpyDeviceToHost));
  } catch (const std::exception& error) {
    text = error.what();
  }
  text.resize(200);
  check_system(::send(socket, text.data(), text.size(), MSG_NOSIGNAL) == 200, "send");
  if (device == nullptr || stream == nullptr) return;
  char command = 0;  // copies until told to stop
  while (::recv(socket, &command, 1, MSG_DONTWAIT) < 0) {
    for (int k = 0; k < 8; ++k) cudaMemcpyAsync(static_cast<char*>(shared_at) + bytes / 2, device, bytes / 2, cudaMemcpyDeviceToHost, stream);
    if (cudaStreamSynchronize(stream) != cudaSuccess) return;
  }
  cudaHostUnregister(shared_at);
}

void pcie_part() {
  // Before CUDA starts: the second process, with the mapping both will register.
  constexpr std::size_t shared_bytes = 64 * kMiB;
  auto shared = map_of("memfd", shared_bytes);
  const auto second_one = second_process([&](int end) { pcie_child(end, shared.at, shared_bytes); });
  const auto child = second_one.process;
  const int socket = second_one.socket;
  limit_waits(socket);
  CHECK(cudaFree(nullptr));
  cudaStream_t stream, second;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  constexpr std::size_t most = 256 * kMiB;
  void *device = nullptr, *device2 = nullptr;
  CHECK(cudaMalloc(&device, most));
  CHECK(cudaMalloc(&device2, most));
  fill(device, most, 5);

  // Rates first: what matters most.
  for (const std::string kind : {"memfd", "memfd_thp", "cudaHostAlloc", "pageable_memfd", "pageable_anonymous"}) {
    item("c", ("rates_" + kind).c_str(), [&] {
      Mapping m;
      void* at = nullptr;
      const bool pageable = kind.rfind("pageable", 0) == 0;
      if (kind == "cudaHostAlloc") {
        CHECK(cudaHostAlloc(&at, 2 * most, cudaHostAllocPortable));
      } else {
        m = map_of(pageable ? kind.substr(9) : kind, 2 * most);
        at = m.at;
        std::memset(at, 1, 2 * most);
        if (!pageable) CHECK(cudaHostRegister(at, 2 * most, cudaHostRegisterPortable));
      }
      for (const std::size_t bytes : {64 * kKiB, kMiB, 16 * kMiB, most}) {
        const auto name = bytes < kMiB ? std::to_string(bytes / kKiB) + "KiB" : std::to_string(bytes / kMiB) + "MiB";
        emit("c", "d2h." + kind + "." + name, rate_of(at, device, bytes, true, stream, pageable), "GB/s, queued copies");
        emit("c", "h2d." + kind + "." + name, rate_of(at, device, bytes, false, stream, pageable), "GB/s, queued copies");
        if (bytes <= 16 * kMiB) {
          std::vector<double> whole, call;
          for (int k = 0; k < 30; ++k) {
            const double t0 = now();
            CHECK(cudaMemcpyAsync(at, device, bytes, cudaMemcpyDeviceToHost, stream));
            const double t1 = now();
            CHECK(cudaStreamSynchronize(stream));
            whole.push_back(now() - t0);
            call.push_back(t1 - t0);
          }
          emit("c", "d2h_one." + kind + "." + name, 1e6 * median(whole), "us, one copy + synchronize");
          emit("c", "d2h_call." + kind + "." + name, 1e6 * median(call), "us until cudaMemcpyAsync returns");
        }
      }
      const auto both = seconds_of(5, [&] {
        for (int k = 0; k < 2; ++k) {
          CHECK(cudaMemcpyAsync(at, device, most, cudaMemcpyDeviceToHost, stream));
          CHECK(cudaMemcpyAsync(device2, static_cast<char*>(at) + most, most, cudaMemcpyHostToDevice, second));
        }
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaStreamSynchronize(second));
      });
      emit("c", "both_directions." + kind + ".256MiB", 4.0 * most / both / kGB, "GB/s, sum of both");
      if (!pageable) {
        void* seen = nullptr;
        if (cudaHostGetDevicePointer(&seen, at, 0) == cudaSuccess) {
          note("c", "device_pointer_is_host_pointer." + kind, seen == at ? "yes" : "no");
          const auto write = event_ms(5, [&] { copy4<<<1056, 256>>>(static_cast<const float4*>(device), static_cast<float4*>(seen), most / 16); });
          emit("c", "kernel_writes_host." + kind, most / write / 1e6, "GB/s");
          const auto read = event_ms(5, [&] { copy4<<<1056, 256>>>(static_cast<const float4*>(seen), static_cast<float4*>(device2), most / 16); });
          emit("c", "kernel_reads_host." + kind, most / read / 1e6, "GB/s");
          CHECK(cudaDeviceSynchronize());
        }
        cudaGetLastError();
        cudaPointerAttributes attributes{};
        CHECK(cudaPointerGetAttributes(&attributes, at));
        note("c", "pointer_type." + kind, attributes.type == cudaMemoryTypeHost ? "host (pinned)" : std::to_string(static_cast<int>(attributes.type)));
      }
      if (kind == "cudaHostAlloc") {
        CHECK(cudaFreeHost(at));
      } else {
        if (!pageable) CHECK(cudaHostUnregister(at));
        m.close();
      }
    });
  }

  item("c", "two_processes", [&] {
    CHECK(cudaHostRegister(shared.at, shared_bytes, cudaHostRegisterPortable));
    std::memset(static_cast<char*>(shared.at) + shared_bytes / 2, 0, shared_bytes / 2);
    send_byte(socket, 'g');
    char text[200];
    check_system(::recv(socket, text, sizeof text, MSG_WAITALL) == 200, "the second process said nothing");
    text[199] = 0;
    note("c", "two_processes_register_one_memfd", text);
    note("c", "two_processes_other's_d2h_seen_here", host_has_pattern(static_cast<char*>(shared.at) + shared_bytes / 2, shared_bytes / 2, 77) ? "yes" : "no");
    CHECK(cudaMemcpy(device2, static_cast<char*>(shared.at) + shared_bytes / 2, shared_bytes / 2, cudaMemcpyHostToDevice));
    emit("c", "two_processes_wrong_words_after_h2d_here", static_cast<double>(others(device2, shared_bytes / 2, 77)));
    emit("c", "two_processes_d2h_while_other_copies_d2h.16MiB", rate_of(shared.at, device, 16 * kMiB, true, stream, false), "GB/s of this one");
    send_byte(socket, 's');
    ::waitpid(child, nullptr, 0);
    emit("c", "two_processes_wrong_after_other_ended", host_has_pattern(static_cast<char*>(shared.at) + shared_bytes / 2, shared_bytes / 2, 77) ? 0 : 1);
    CHECK(cudaHostUnregister(shared.at));
  });

  item("c", "two_mappings", [&] {  // of one memfd in one process, as thread ranks have them
    void* const again = ::mmap(nullptr, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared.file, 0);
    check_system(again != MAP_FAILED, "mmap");
    CHECK(cudaHostRegister(shared.at, shared_bytes, cudaHostRegisterPortable));
    const auto error = cudaHostRegister(again, shared_bytes, cudaHostRegisterPortable);
    cudaGetLastError();
    note("c", "two_mappings_of_one_memfd_in_one_process", cudaGetErrorName(error));
    if (error == cudaSuccess) CHECK(cudaHostUnregister(again));
    CHECK(cudaHostUnregister(shared.at));
    ::munmap(again, shared_bytes);
  });

  item("c", "slots", [&] {
    constexpr std::size_t slot = 16 * kMiB;
    constexpr int slots = 16;
    auto m = map_of("memfd", slot * slots);
    auto* const base = static_cast<char*>(m.at);
    std::vector<double> each;
    for (int k = 0; k < slots; ++k) {
      const double begin = now();
      CHECK(cudaHostRegister(base + k * slot, slot, cudaHostRegisterPortable));
      each.push_back(now() - begin);
    }
    emit("c", "slot_by_slot_register.16MiB", 1e3 * median(each), "ms a slot, untouched");
    emit("c", "slot_by_slot_register.16MiB.max", 1e3 * quantile(each, 1), "ms");
    const auto across = cudaMemcpyAsync(base + slot / 2, device, slot, cudaMemcpyDeviceToHost, stream);
    const auto synced = cudaStreamSynchronize(stream);
    cudaGetLastError();
    note("c", "copy_across_two_registered_slots", std::string(cudaGetErrorName(across)) + ", then " + cudaGetErrorName(synced));
    note("c", "copy_across_two_registered_slots_bytes", host_has_pattern(base + slot / 2, slot, 5) ? "right" : "wrong");
    const auto twice = cudaHostRegister(base, slot, cudaHostRegisterPortable);
    cudaGetLastError();
    note("c", "register_twice", std::string(cudaGetErrorName(twice)) + " " + std::to_string(static_cast<int>(twice)));
    each.clear();
    for (int k = 0; k < slots; ++k) {
      const double begin = now();
      CHECK(cudaHostUnregister(base + k * slot));
      each.push_back(now() - begin);
    }
    emit("c", "slot_by_slot_unregister.16MiB", 1e3 * median(each), "ms a slot");
    // Neighbours that share a page.
    const auto first = cudaHostRegister(base, kMiB + 1000, cudaHostRegisterPortable);
    cudaGetLastError();
    const auto next = cudaHostRegister(base + kMiB + 1000, kMiB, cudaHostRegisterPortable);
    cudaGetLastError();
    note("c", "slots_that_share_a_page", std::string(cudaGetErrorName(first)) + ", then " + cudaGetErrorName(next) + " " + std::to_string(static_cast<int>(next)));
    if (next == cudaSuccess) cudaHostUnregister(base + kMiB + 1000);
    if (first == cudaSuccess) cudaHostUnregister(base);
    cudaGetLastError();
    m.close();
  });

  for (const std::string kind : {"memfd", "memfd_touched", "memfd_thp", "memfd_thp_touched", "memfd_hugetlb", "anonymous_touched", "anonymous_thp_touched"}) {
    item("c", ("register_" + kind).c_str(), [&] {
      constexpr std::size_t bytes = 256 * kMiB;
      std::vector<double> in, out, touch;
      for (int k = 0; k < 5; ++k) {
        auto m = map_of(kind, bytes);
        if (kind.find("touched") != std::string::npos) {
          const double begin = now();
          in_threads(8, bytes, [&](std::int64_t from, std::int64_t to) { std::memset(static_cast<char*>(m.at) + from, 1, static_cast<std::size_t>(to - from)); });
          touch.push_back(now() - begin);
        }
        const double t0 = now();
        const auto error = cudaHostRegister(m.at, bytes, cudaHostRegisterPortable);
        const double t1 = now();
        if (error != cudaSuccess) {
          m.close();
          CHECK(error);
        }
        if (k == 0 && kind.find("thp") != std::string::npos) {
          note("c", "meminfo_while_registered." + kind, "AnonHugePages" + meminfo("AnonHugePages") + " ShmemHugePages" + meminfo("ShmemHugePages"));
        }
        const double t2 = now();
        CHECK(cudaHostUnregister(m.at));
        out.push_back(now() - t2);
        in.push_back(t1 - t0);
        m.close();
      }
      emit("c", "register." + kind, 4e3 * median(in), "ms per GiB");
      emit("c", "unregister." + kind, 4e3 * median(out), "ms per GiB");
      if (!touch.empty()) emit("c", "touch_8_threads." + kind, 4e3 * median(touch), "ms per GiB");
    });
  }
}

// ---- e: two processes on one device ----

struct Shared {
  std::atomic<int> stop, busy, ping, pong, dead;
};
struct Driver {
  void* library = nullptr;
#define FACTS_DRIVER(name) decltype(&::name) name = nullptr;
#define FACTS_CALLS(X)                                                                                                                    \
  X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle) \
      X(cuMemImportFromShareableHandle) X(cuMemGetAllocationGranularity) X(cuGetErrorName) X(cuDeviceGetAttribute)
  FACTS_CALLS(FACTS_DRIVER)
  Driver() {
    library = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error("no libcuda.so.1");
#define FACTS_LOAD(name)                                              \
  name = reinterpret_cast<decltype(name)>(::dlsym(library, #name)); \
  if (name == nullptr) throw std::runtime_error("libcuda has no " #name);
    FACTS_CALLS(FACTS_LOAD)
  }
  void check(CUresult result, const char* what) const {
    if (result != CUDA_SUCCESS) {
      const char* name = "?";
      cuGetErrorName(result, &name);
      throw std::runtime_error(std::string(what) + ": " + (name == nullptr ? "?" : name) + " (" + std::to_string(static_cast<int>(result)) + ")");
    }
  }
};
#define DRIVE(driver, call) (driver).check((driver).call, #call)

constexpr std::size_t kBlock = 64 * kMiB;
constexpr int kBlocks = 16;
struct Vmm {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  std::size_t bytes = kBlock;
};
void map_block(const Driver& driver, Vmm& block, double* access_s) {
  DRIVE(driver, cuMemAddressReserve(&block.at, block.bytes, 0, 0, 0));
  DRIVE(driver, cuMemMap(block.at, block.bytes, 0, block.handle, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const double begin = now();
  DRIVE(driver, cuMemSetAccess(block.at, block.bytes, &access, 1));
  if (access_s != nullptr) *access_s = now() - begin;
}
void unmap_block(const Driver& driver, Vmm& block) {
  DRIVE(driver, cuMemUnmap(block.at, block.bytes));
  DRIVE(driver, cuMemAddressFree(block.at, block.bytes));
  DRIVE(driver, cuMemRelease(block.handle));
}
void send_files(int socket, const std::vector<int>& files) {
  char byte = 'f';
  iovec data{&byte, 1};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * files.size()));
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control.data(), message.msg_controllen = control.size();
  auto* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int) * files.size());
  std::memcpy(CMSG_DATA(header), files.data(), sizeof(int) * files.size());
  check_system(::sendmsg(socket, &message, MSG_NOSIGNAL) == 1, "sendmsg");
}
std::vector<int> receive_files(int socket, std::size_t count) {
  char byte = 0;
  iovec data{&byte, 1};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control.data(), message.msg_controllen = control.size();
  check_system(::recvmsg(socket, &message, 0) == 1, "recvmsg");
  auto* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) throw std::runtime_error("no descriptors came");
  std::vector<int> files(count);
  std::memcpy(files.data(), CMSG_DATA(header), sizeof(int) * count);
  return files;
}

struct Answer {
  char text[256];
  double number[6];
};
struct Legacy {
  cudaIpcMemHandle_t memory;
  std::size_t bytes;
};
void ping_pong(std::atomic<int>& mine, std::atomic<int>& other, int rounds, bool begins, std::vector<double>* times) {
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const double last = now() + 10;
  const auto wait = [&](int value) {
    while (other.load(std::memory_order_acquire) < value) {
      if (now() > last) throw std::runtime_error("ping-pong: the other is silent");
    }
  };
  for (int k = 1; k <= rounds; ++k) {
    const double begin = now();
    if (!begins) wait(k);
    nothing<<<1, 32>>>();
    CHECK(cudaEventRecord(event));
    for (;;) {
      const auto state = cudaEventQuery(event);
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) CHECK(state);
    }
    mine.store(k, std::memory_order_release);
    if (begins) wait(k);
    if (times != nullptr) times->push_back(now() - begin);
  }
  CHECK(cudaEventDestroy(event));
}

void ipc_child(int socket, Shared& shared) {
  std::vector<Vmm> blocks;
  std::unique_ptr<Driver> driver;
  for (;;) {
    const char command = receive_byte(socket);
    Answer answer{};
    std::strcpy(answer.text, "ok");
    try {
      switch (command) {
        case 'I': CHECK(cudaFree(nullptr)); fill_pattern<<<1, 32>>>(nullptr, 0, 0); CHECK(cudaDeviceSynchronize()); break;
        case 'L': {
          Legacy legacy{};
          check_system(::recv(socket, &legacy, sizeof legacy, MSG_WAITALL) == sizeof legacy, "recv");
          void* at = nullptr;
          double begin = now();
          CHECK(cudaIpcOpenMemHandle(&at, legacy.memory, cudaIpcMemLazyEnablePeerAccess));
          answer.number[0] = now() - begin;
          answer.number[1] = static_cast<double>(others(at, legacy.bytes, 11));
          fill(at, legacy.bytes, 12);
          begin = now();
          CHECK(cudaIpcCloseMemHandle(at));
          answer.number[2] = now() - begin;
          break;
        }
        case 'E': {
          cudaIpcEventHandle_t handle;
          check_system(::recv(socket, &handle, sizeof handle, MSG_WAITALL) == sizeof handle, "recv");
          cudaEvent_t event;
          CHECK(cudaIpcOpenEventHandle(&event, handle));
          const double begin = now();
          CHECK(cudaStreamWaitEvent(nullptr, event, 0));
          nothing<<<1, 32>>>();
          CHECK(cudaDeviceSynchronize());
          answer.number[0] = now() - begin;
          CHECK(cudaEventDestroy(event));
          break;
        }
        case 'V': {
          const auto files = receive_files(socket, kBlocks);
          driver = std::make_unique<Driver>();
          std::vector<double> import, map, access;
          double wrong = 0;
          for (const int file : files) {
            Vmm block;
            const double t0 = now();
            DRIVE(*driver, cuMemImportFromShareableHandle(&block.handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            const double t1 = now();
            double set = 0;
            map_block(*driver, block, &set);
            map.push_back(now() - t1);
            import.push_back(t1 - t0);
            access.push_back(set);
            ::close(file);
            wrong += static_cast<double>(others(reinterpret_cast<void*>(block.at), block.bytes, 21));
            fill(reinterpret_cast<void*>(block.at), block.bytes, 22);
            blocks.push_back(block);
          }
          answer.number[0] = median(import), answer.number[1] = median(map), answer.number[2] = median(access), answer.number[3] = wrong;
          break;
        }
        case 'O':  // the maker has let go of its mapping, handle and descriptor
          for (const auto& block : blocks) answer.number[0] += static_cast<double>(others(reinterpret_cast<void*>(block.at), block.bytes, 23));
          for (auto& block : blocks) unmap_block(*driver, block);
          blocks.clear();
          break;
        case 'b':    // short kernels without pause
        case 'B':    // long ones
        case 'D': {  // copies on the device
          void *from = nullptr, *to = nullptr;
          if (command == 'D') {
            CHECK(cudaMalloc(&from, 512 * kMiB));
            CHECK(cudaMalloc(&to, 512 * kMiB));
          }
          shared.stop = 0;
          shared.busy = 1;
          const double last = now() + 15;
          while (shared.stop == 0 && now() < last) {
            for (int k = 0; k < 4; ++k) {
              if (command == 'D') {
                CHECK(cudaMemcpyAsync(to, from, 512 * kMiB, cudaMemcpyDeviceToDevice));
              } else {
                spin<<<264, 256>>>(command == 'b' ? 200'000 : 10'000'000);
              }
            }
            CHECK(cudaDeviceSynchronize());
          }
          shared.busy = 0;
          if (from != nullptr) cudaFree(from);
          if (to != nullptr) cudaFree(to);
          break;
        }
        case 'P': ping_pong(shared.pong, shared.ping, 300, false, nullptr); break;
        case 'Q': return;
        default: throw std::runtime_error("unknown command");
      }
    } catch (const std::exception& error) {
      std::snprintf(answer.text, sizeof answer.text, "%s", error.what());
      shared.busy = 0;
    }
    check_system(::send(socket, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer, "send");
  }
}

void latencies(const std::string& tag) {
  cudaEvent_t fast, blocking;
  CHECK(cudaEventCreateWithFlags(&fast, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&blocking, cudaEventDisableTiming | cudaEventBlockingSync));
  const auto measure = [&](const char* name, const std::function<void()>& work) {
    for (int k = 0; k < 3; ++k) work();
    std::vector<double> all;
    for (const double last = now() + 0.7; now() < last && all.size() < 500;) {
      const double begin = now();
      work();
      all.push_back(1e6 * (now() - begin));
    }
    emit("e", std::string(name) + "." + tag, median(all), "us");
    emit("e", std::string(name) + ".p90." + tag, quantile(all, 0.9), "us");
    emit("e", std::string(name) + ".max." + tag, quantile(all, 1), "us");
  };
  measure("launch_stream_synchronize", [] {
    nothing<<<1, 32>>>();
    CHECK(cudaStreamSynchronize(nullptr));
  });
  measure("launch_record_query", [&] {
    nothing<<<1, 32>>>();
    CHECK(cudaEventRecord(fast));
    for (;;) {
      const auto state = cudaEventQuery(fast);
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) CHECK(state);
    }
  });
  measure("launch_record_synchronize", [&] {
    nothing<<<1, 32>>>();
    CHECK(cudaEventRecord(fast));
    CHECK(cudaEventSynchronize(fast));
  });
  measure("launch_record_synchronize_blocking", [&] {
    nothing<<<1, 32>>>();
    CHECK(cudaEventRecord(blocking));
    CHECK(cudaEventSynchronize(blocking));
  });
  CHECK(cudaEventDestroy(fast));
  CHECK(cudaEventDestroy(blocking));
}

void ipc_part() {
  auto* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check_system(memory != MAP_FAILED, "mmap");
  auto& shared = *new (memory) Shared{};
  const auto second_one = second_process([&](int end) { ipc_child(end, shared); });
  const auto child = second_one.process;
  const int socket = second_one.socket;
  limit_waits(socket);
  const auto hear = [&] {
    Answer answer{};
    check_system(::recv(socket, &answer, sizeof answer, MSG_WAITALL) == sizeof answer, "the second process said nothing");
    answer.text[255] = 0;
    if (std::strcmp(answer.text, "ok") != 0) throw std::runtime_error(std::string("second process: ") + answer.text);
    return answer;
  };
  const double start = now();
  CHECK(cudaFree(nullptr));
  emit("e", "context_create", 1e3 * (now() - start), "ms");
  fill_pattern<<<1, 32>>>(nullptr, 0, 0);
  CHECK(cudaDeviceSynchronize());
  item("e", "latency_alone", [&] {
    latencies("alone");
    std::vector<double> launch;
    for (int k = 0; k < 300; ++k) {
      const double begin = now();
      nothing<<<1, 32>>>();
      launch.push_back(1e6 * (now() - begin));
      if (k % 50 == 49) CHECK(cudaDeviceSynchronize());
    }
    CHECK(cudaDeviceSynchronize());
    emit("e", "launch_only", median(launch), "us");
  });
  std::size_t before = 0, after = 0, total = 0;
  item("e", "second_context", [&] {
    CHECK(cudaMemGetInfo(&before, &total));
    send_byte(socket, 'I');
    hear();
    CHECK(cudaMemGetInfo(&after, &total));
    emit("e", "second_context_device_memory", (static_cast<double>(before) - static_cast<double>(after)) / kMiB, "MiB");
  });
  item("e", "latency_idle_second", [&] { latencies("second_idle"); });

  item("e", "legacy_ipc", [&] {
    Legacy legacy{};
    legacy.bytes = kBlock;
    void* at = nullptr;
    CHECK(cudaMalloc(&at, kBlock));
    fill(at, kBlock, 11);
    const double begin = now();
    CHECK(cudaIpcGetMemHandle(&legacy.memory, at));
    emit("e", "legacy_get_handle", 1e6 * (now() - begin), "us");
    send_byte(socket, 'L');
    check_system(::send(socket, &legacy, sizeof legacy, MSG_NOSIGNAL) == sizeof legacy, "send");
    const auto answer = hear();
    emit("e", "legacy_open.64MiB", 1e3 * answer.number[0], "ms");
    emit("e", "legacy_close.64MiB", 1e3 * answer.number[2], "ms");
    const auto wrong = others(at, kBlock, 12);
    note("e", "legacy_ipc", answer.number[1] == 0 && wrong == 0 ? "works, read and written" : "wrong bytes");
    CHECK(cudaFree(at));
  });
  item("e", "event_ipc", [&] {
    cudaEvent_t event;
    cudaIpcEventHandle_t handle;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    CHECK(cudaIpcGetEventHandle(&handle, event));
    spin<<<1, 32>>>(100'000'000);  // about 50 ms that the other's stream has to wait for
    CHECK(cudaEventRecord(event));
    send_byte(socket, 'E');
    check_system(::send(socket, &handle, sizeof handle, MSG_NOSIGNAL) == sizeof handle, "send");
    const auto answer = hear();
    note("e", "event_ipc", "works");
    emit("e", "event_ipc_other_stream_waited", 1e3 * answer.number[0], "ms (of about 50: the wait is real)");
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventDestroy(event));
  });
  item("e", "vmm", [&] {
    const Driver driver;
    int supported = 0;
    driver.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
    emit("e", "vmm_descriptor_attribute", supported);
    int host_registered = 0;
    driver.cuDeviceGetAttribute(&host_registered, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0);
    emit("e", "read_only_host_register_attribute", host_registered);
    CUmemAllocationProp wish{};
    wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wish.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wish.location.id = 0;
    wish.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t minimum = 0, recommended = 0;
    DRIVE(driver, cuMemGetAllocationGranularity(&minimum, &wish, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    DRIVE(driver, cuMemGetAllocationGranularity(&recommended, &wish, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    emit("e", "vmm_granularity_minimum", static_cast<double>(minimum) / kKiB, "KiB");
    emit("e", "vmm_granularity_recommended", static_cast<double>(recommended) / kKiB, "KiB");
    std::vector<Vmm> blocks(kBlocks);
    std::vector<int> files;
    std::vector<double> create, map, access, give;
    for (auto& block : blocks) {
      const double t0 = now();
      DRIVE(driver, cuMemCreate(&block.handle, block.bytes, &wish, 0));
      const double t1 = now();
      double set = 0;
      map_block(driver, block, &set);
      const double t2 = now();
      int file = -1;
      DRIVE(driver, cuMemExportToShareableHandle(&file, block.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      give.push_back(now() - t2);
      create.push_back(t1 - t0), map.push_back(t2 - t1), access.push_back(set);
      files.push_back(file);
      fill(reinterpret_cast<void*>(block.at), block.bytes, 21);
    }
    emit("e", "vmm_create.64MiB", 1e3 * median(create), "ms");
    emit("e", "vmm_map.64MiB", 1e3 * median(map), "ms (reserve + map + set access)");
    emit("e", "vmm_set_access.64MiB", 1e3 * median(access), "ms");
    emit("e", "vmm_export.64MiB", 1e3 * median(give), "ms");
    note("e", "vmm_export", "works");
    send_byte(socket, 'V');
    send_files(socket, files);
    const auto answer = hear();
    emit("e", "vmm_other_import.64MiB", 1e3 * answer.number[0], "ms");
    emit("e", "vmm_other_map.64MiB", 1e3 * answer.number[1], "ms (reserve + map + set access)");
    emit("e", "vmm_other_set_access.64MiB", 1e3 * answer.number[2], "ms");
    unsigned long long wrong = 0;
    for (const auto& block : blocks) wrong += others(reinterpret_cast<void*>(block.at), block.bytes, 22);
    note("e", "vmm_import", answer.number[3] == 0 && wrong == 0 ? "works, read and written" : "wrong bytes");
    std::vector<char> host(kMiB);
    CHECK(cudaMemcpy(host.data(), reinterpret_cast<void*>(blocks[0].at), kMiB, cudaMemcpyDeviceToHost));
    note("e", "vmm_memcpy_to_host", host_has_pattern(host.data(), kMiB, 22) ? "right" : "wrong");
    for (auto& block : blocks) fill(reinterpret_cast<void*>(block.at), block.bytes, 23);
    for (auto& block : blocks) unmap_block(driver, block);
    for (const int file : files) ::close(file);
    send_byte(socket, 'O');
    note("e", "vmm_outlives_its_maker", hear().number[0] == 0 ? "yes" : "wrong bytes");
  });
  item("e", "ping_pong", [&] {
    std::vector<double> times;
    send_byte(socket, 'P');
    ping_pong(shared.ping, shared.pong, 300, true, &times);
    hear();
    emit("e", "ping_pong_two_processes", 1e6 * median(times), "us a round: each launches, polls its event, stores a word");
    emit("e", "ping_pong_two_processes.p90", 1e6 * quantile(times, 0.9), "us");
  });
  const auto busy = [&](char command, const std::function<void()>& work) {
    shared.stop = 0;
    shared.busy = 0;
    send_byte(socket, command);
    for (const double last = now() + 5; shared.busy == 0 && now() < last;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::string failed;
    try {
      work();
    } catch (const std::exception& error) {
      failed = error.what();
    }
    shared.stop = 1;
    hear();
    if (!failed.empty()) throw std::runtime_error(failed);
  };
  item("e", "busy_short", [&] { busy('b', [] { latencies("second_busy_100us_kernels"); }); });
  item("e", "busy_long", [&] { busy('B', [] { latencies("second_busy_5ms_kernels"); }); });
  item("e", "busy_copies", [&] {
    void *from = nullptr, *to = nullptr;
    CHECK(cudaMalloc(&from, 512 * kMiB));
    CHECK(cudaMalloc(&to, 512 * kMiB));
    const auto rate = [&] {
      const auto seconds = seconds_of(7, [&] {
        for (int k = 0; k < 20; ++k) CHECK(cudaMemcpyAsync(to, from, 512 * kMiB, cudaMemcpyDeviceToDevice));
        CHECK(cudaDeviceSynchronize());
      });
      return 20 * 2.0 * 512 * kMiB / seconds / kGB;
    };
    emit("e", "d2d_second_idle", rate(), "GB/s read+written");
    busy('D', [&] { emit("e", "d2d_second_copying_too", rate(), "GB/s read+written, of this process"); });
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
  });
  try {
    send_byte(socket, 'Q');
  } catch (const std::exception&) {
  }
  for (int k = 0; k < 200; ++k) {
    if (::waitpid(child, nullptr, WNOHANG) == child) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// ---- f: our formulas ----

bool same(float a, float b) {
  if (std::isnan(a) && std::isnan(b)) return true;
  return std::memcmp(&a, &b, sizeof a) == 0;
}
using Kernel = cudaError_t (*)(int, const Sources*, float, const Adam*, float*, float*, float*, std::int64_t, int, int, cudaStream_t);

void fold_bits() {
  constexpr std::int64_t count = 1 << 24;
  constexpr std::size_t bytes = count * sizeof(float);
  std::vector<std::vector<float>> host(11, std::vector<float>(count)), expected(3);
  std::vector<float> got(count);
  std::vector<float*> device(11);
  std::vector<float*> work(3);
  for (auto& at : device) CHECK(cudaMalloc(&at, bytes));
  for (auto& at : work) CHECK(cudaMalloc(&at, bytes));
  struct Range { const char* name; unsigned lowest, highest; };  // of the exponent
  for (const auto& range : {Range{"all_bit_patterns", 0, 255}, Range{"around_one", 110, 140}, Range{"near_subnormal", 0, 40}}) {
    in_threads(11, 11 * 16, [&](std::int64_t from, std::int64_t) {
      const auto k = static_cast<std::size_t>(from / 16);
      std::uint64_t state = 88172645463325252ULL + 1000003 * k + range.lowest;
      for (auto& value : host[k]) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const auto random = static_cast<std::uint32_t>(state >> 16);
        const auto exponent = range.lowest + ((random >> 23) & 255U) % (range.highest - range.lowest + 1);
        auto word = (random & 0x807FFFFFU) | (exponent << 23);
        if (random % 1024 == 0) word &= 0x80000000U;                                    // zeros of both signs
        if (random % 1024 == 1 && range.highest == 255) word = (word & 0x80000000U) | 0x7F800000U;  // infinities
        if (k == 10) word &= 0x7FFFFFFFU;                                               // second moments
        std::memcpy(&value, &word, sizeof value);
      }
    });
    for (std::size_t k = 0; k < 11; ++k) CHECK(cudaMemcpy(device[k], host[k].data(), bytes, cudaMemcpyHostToDevice));
    for (const int n : {1, 2, 3, 4, 8}) {
      auto by = plain_adam();
      by.shrinks = n == 3, by.decays = n == 4;
      const float divisor = n == 1 ? 1 : n == 2 ? 2 : n == 3 ? 3 : n == 4 ? 7 : 24;
      Sources on_host{}, on_device{};
      for (std::size_t k = 0; k < 8; ++k) on_host.node[k] = host[k].data(), on_device.node[k] = device[k];
      for (std::size_t k = 0; k < 3; ++k) expected[k] = host[8 + k];
      in_threads(16, count, [&](std::int64_t from, std::int64_t to) {
        host_fold_adam(n, &on_host, divisor, &by, expected[0].data(), expected[1].data(), expected[2].data(), from, to);
      });
      const auto run = [&](const std::string& name, Kernel kernel, int width) {
        for (std::size_t k = 0; k < 3; ++k) CHECK(cudaMemcpy(work[k], device[8 + k], bytes, cudaMemcpyDeviceToDevice));
        CHECK(kernel(n, &on_device, divisor, &by, work[0], work[1], work[2], count, width, 1056, nullptr));
        CHECK(cudaDeviceSynchronize());
        std::int64_t differ = 0;
        for (std::size_t k = 0; k < 3; ++k) {
          CHECK(cudaMemcpy(got.data(), work[k], bytes, cudaMemcpyDeviceToHost));
          std::atomic<std::int64_t> all{0};
          in_threads(16, count, [&](std::int64_t from, std::int64_t to) {
            std::int64_t mine = 0;
            for (auto i = from; i < to; ++i) mine += !same(got[static_cast<std::size_t>(i)], expected[k][static_cast<std::size_t>(i)]);
            all += mine;
          });
          differ += all;
        }
        emit("f", "cu_words_differing." + name + "." + range.name + ".nodes" + std::to_string(n), static_cast<double>(differ), "of 3 x 2^24 (p, m, v)");
      };
      run("fmad_false", fold_adam_exact, 1);
      if (n <= 2) run("fmad_false_float4", fold_adam_exact, 4);
      if (n == 2) run("fmad_true_control", fold_adam_contracted, 1);
      if (n == 2) {
        std::int64_t finite = 0, subnormal = 0;
        for (const float value : expected[0]) finite += std::isfinite(value);
        for (const float value : expected[2]) subnormal += value != 0 && std::abs(value) < 1.17549435e-38F;
        emit("f", std::string("cu_finite_parameters.") + range.name, static_cast<double>(finite) / count, "share of results");
        emit("f", std::string("cu_subnormal_second_moments.") + range.name, static_cast<double>(subnormal) / count, "share of results");
      }
    }
  }
  for (auto& at : device) CHECK(cudaFree(at));
  for (auto& at : work) CHECK(cudaFree(at));
}

void fold_time() {
  constexpr std::int64_t count = 250'000'000;
  constexpr std::size_t bytes = count * sizeof(float);
  std::vector<float*> at(11);
  for (auto& p : at) {
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaMemset(p, 0x3C, bytes));  // 0.0115
  }
  Sources s{};
  for (int k = 0; k < 8; ++k) s.node[k] = at[static_cast<std::size_t>(k)];
  const auto by = plain_adam();
  const auto copy = event_ms(9, [&] { CHECK(cudaMemcpyAsync(at[1], at[0], bytes, cudaMemcpyDeviceToDevice)); });
  const double copy_rate = 2.0 * bytes / copy / 1e6;
  emit("f", "cu_time.copy_of_S", copy, "ms, S = 1 GB");
  emit("f", "cu_time.copy_rate", copy_rate, "GB/s read+written");
  for (const int n : {1, 2, 4, 8}) {
    for (const int width : {1, 4}) {
      double best = 1e9;
      int with = 0;
      for (const int blocks : {1056, 4224, 1 << 17}) {
        const auto ms = event_ms(5, [&] { CHECK(fold_adam_exact(n, &s, 8, &by, at[8], at[9], at[10], count, width, blocks, nullptr)); });
        if (ms < best) best = ms, with = blocks;
        if (n == 2) emit("f", "cu_time.nodes2.width" + std::to_string(width) + ".blocks" + std::to_string(blocks), ms, "ms");
      }
      const auto name = "cu_time.nodes" + std::to_string(n) + ".width" + std::to_string(width);
      emit("f", name + ".best", best, "ms, with " + std::to_string(with) + " blocks of 256");
      emit("f", name + ".share_of_copy_rate", (n + 6.0) * bytes / best / 1e6 / copy_rate, "of (n+6) S bytes");
    }
  }
  for (auto& p : at) CHECK(cudaFree(p));
}
}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  const char* const label = part == "pcie" ? "c" : part == "ipc" ? "e" : part == "fold" ? "f" : "d";
  const double begin = now();
  if (part == "device") item(label, "device", device_part);
  else if (part == "host") item(label, "host", host_part);
  else if (part == "pcie") item(label, "pcie", pcie_part);
  else if (part == "ipc") item(label, "ipc", ipc_part);
  else if (part == "fold") {
    item(label, "fold_bits", fold_bits);
    item(label, "fold_time", fold_time);
  } else {
    std::fprintf(stderr, "facts_cuda device|host|pcie|ipc|fold\n");
    return 2;
  }
  emit(label, "seconds." + part, now() - begin, "s");
  std::fflush(stdout);
  ::_exit(0);
}
