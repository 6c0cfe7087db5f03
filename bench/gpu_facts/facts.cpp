// Part b: hooks' threads and streams on CUDA, the end of a backward, pinned memory as libtorch sees
// it. c10 + ATen only: no CUDA header. `facts [dlopen]`: with the word, libtorch_cuda.so is loaded
// by name (a program linked with libtorch_cpu alone).
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "facts_emit.h"

namespace {
using at::Tensor;
std::string part = "b";
std::thread::id caller;

void item(const std::string& name, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    note(part, "error." + name, std::string(error.what()).substr(0, 400));
  }
}
std::string thread_name() {
  char name[32] = "?";
  ::pthread_getname_np(::pthread_self(), name, sizeof name);
  return name;
}
std::string text_of(const c10::Stream& stream) {
  std::ostringstream text;
  text << stream.device() << " stream " << stream.id();
  return text.str();
}
Tensor leaf(const c10::Device& device, std::int64_t count = 4096) {
  return at::ones({count}, at::TensorOptions(device).dtype(at::kFloat)).requires_grad_();
}

// ---- where hooks run ----

struct Seen {
  std::mutex mutex;
  std::map<std::string, int>
      counts;  // "pre cuda: thread pt_autograd_0, not the caller's, cuda:0 stream 0"
  void add(const std::string& text) {
    const std::lock_guard lock(mutex);
    ++counts[text];
  }
};
std::string here() {
  return std::this_thread::get_id() == caller ? "the caller's thread" : "another thread";
}

struct PreHook : torch::autograd::FunctionPreHook {
  explicit PreHook(std::function<void(const Tensor&)> work) : work(std::move(work)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    work(gradients[0]);
    return gradients;
  }
  std::function<void(const Tensor&)> work;
};
struct PostHook : torch::autograd::PostAccumulateGradHook {
  explicit PostHook(std::function<void(const Tensor&)> work) : work(std::move(work)) {}
  void operator()(const Tensor& parameter) override { work(parameter); }
  std::function<void(const Tensor&)> work;
};

void where() {
  const c10::Device cuda(c10::DeviceType::CUDA, 0), cpu(c10::DeviceType::CPU);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  note(part, "default_stream", text_of(guard.getStream(cuda)));
  for (const bool forward_elsewhere : {false, true}) {
    Seen seen;
    const auto a = leaf(cuda), b = leaf(cuda), c = leaf(cpu);
    const auto say = [&](const char* kind, const c10::Device& device) {
      std::ostringstream text;
      text << kind << " of a " << device.type() << " parameter: " << here() << " (" << thread_name()
           << "), current " << text_of(guard.getStream(cuda)) << ", device " << guard.getDevice()
           << ", threads of at::parallel_for " << at::get_num_threads();
      seen.add(text.str());
    };
    auto on_a = torch::autograd::impl::grad_accumulator(a);  // made under the default stream
    auto on_c = torch::autograd::impl::grad_accumulator(c);
    on_a->add_pre_hook(std::make_unique<PreHook>([&](const Tensor& g) {
      say("pre hook of AccumulateGrad", g.device());
      torch::autograd::Engine::get_default_engine().queue_callback(
          [&] { say("final callback", cuda); });
    }));
    on_c->add_pre_hook(std::make_unique<PreHook>(
        [&](const Tensor& g) { say("pre hook of AccumulateGrad", g.device()); }));
    torch::autograd::impl::set_post_acc_grad_hooks(
        b, std::make_unique<PostHook>(
               [&](const Tensor& p) { say("post-accumulate hook", p.device()); }));
    const auto side = guard.getStreamFromGlobalPool(cuda);
    for (int k = 0; k < 50; ++k) {
      c10::OptionalStreamGuard on;
      if (forward_elsewhere) on.reset_stream(side);
      auto loss = (a * 2 + b * 3).sum() + (c * 4).sum().to(cuda);
      loss.backward();
    }
    guard.synchronizeStream(side);
    guard.synchronizeStream(guard.getDefaultStream(cuda));
    const std::string name = forward_elsewhere ? "other_stream" : "one_stream";
    if (forward_elsewhere)
      note(part, "where.other_stream",
           "forward and backward() under " + text_of(side) +
               "; the nodes with pre hooks were made under the default stream");
    int k = 0;
    for (const auto& [text, count] : seen.counts)
      note(part, "where." + name + "." + std::to_string(k++), std::to_string(count) + "x " + text);
    note(part, "where." + name + ".gradients",
         a.grad().eq(100).all().item<bool>() && b.grad().eq(150).all().item<bool>() &&
                 c.grad().eq(200).all().item<bool>()
             ? "right"
             : "WRONG");
    torch::autograd::impl::set_post_acc_grad_hooks(b, nullptr);
    on_a->pre_hooks().clear();
    on_c->pre_hooks().clear();
  }
}

// ---- a backward that throws ----

struct MyError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
std::atomic<int> after, before, elsewhere, called_elsewhere, called_here;
std::atomic<bool> returned;
struct Guard {
  ~Guard() {
    if (done) return;
    ++(returned.load() ? after : before);
    if (std::this_thread::get_id() != caller) ++elsewhere;
  }
  bool done = false;
};
void exceptions() {
  for (const auto type : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    const c10::Device device(type, type == c10::DeviceType::CUDA ? 0 : -1);
    after = before = elsewhere = called_here = called_elsewhere = 0;
    int kept_type = 0, other_type = 0;
    for (int k = 0; k < 400; ++k) {
      const auto p = leaf(device, 4);
      auto node = torch::autograd::impl::grad_accumulator(p);
      node->add_pre_hook(std::make_unique<PreHook>([k](const Tensor&) {
        auto guard = std::make_shared<Guard>();
        torch::autograd::Engine::get_default_engine().queue_callback([guard] {
          guard->done = true;
          ++(std::this_thread::get_id() == caller ? called_here : called_elsewhere);
        });
        guard.reset();
        if (k % 2 == 0) throw MyError("from a hook");
      }));
      returned = false;
      try {
        (p * 2).sum().backward();
      } catch (const MyError&) {
        returned = true;
        ++kept_type;
      } catch (const std::exception&) {
        returned = true;
        ++other_type;
      }
      for (int i = 0; i < 1000 && k % 2 == 0; ++i) std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::string name =
        std::string("exception.") + (type == c10::DeviceType::CUDA ? "cuda" : "cpu") + ".";
    emit(part, name + "kept_its_type", kept_type, "of 200");
    emit(part, name + "lost_its_type", other_type, "of 200");
    emit(part, name + "callbacks_destroyed_before_backward_came_back", before, "of 200");
    emit(part, name + "callbacks_destroyed_after_backward_came_back", after, "of 200");
    emit(part, name + "callbacks_destroyed_on_another_thread", elsewhere, "of 200");
    emit(part, name + "final_callbacks_on_another_thread", called_elsewhere, "of 200");
    emit(part, name + "final_callbacks_on_the_callers_thread", called_here, "of 200");
  }
}

void threads() {
  std::map<std::string, int> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    std::getline(file, name);
    ++names[name];
  }
  std::string text;
  for (const auto& [name, count] : names)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + "x " + name;
  note(part, "threads_of_the_process", text);
}

// ---- what a hook pays ----

void costs() {
  const c10::Device cuda(c10::DeviceType::CUDA, 0);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const auto side = guard.getStreamFromGlobalPool(cuda);
  const auto own = guard.getStream(cuda);
  const auto x = at::ones({1024}, at::TensorOptions(cuda));
  constexpr int times = 2000;
  const auto per_call = [&](const char* name, const std::function<void()>& work) {
    for (int k = 0; k < 20; ++k) work();
    guard.synchronizeStream(own);
    guard.synchronizeStream(side);
    std::vector<double> all;
    for (int round = 0; round < 5; ++round) {
      const double begin = now();
      for (int k = 0; k < times / 5; ++k) work();
      all.push_back((now() - begin) / (times / 5));
      guard.synchronizeStream(own);
      guard.synchronizeStream(side);
    }
    emit(part, std::string("cost.") + name, 1e6 * median(all), "us");
  };
  per_call("event_made_recorded_waited_for", [&] {
    c10::Event ready(c10::DeviceType::CUDA);
    ready.record(own);
    side.wait(ready);
  });
  c10::Event kept(c10::DeviceType::CUDA);
  per_call("event_kept_recorded_waited_for", [&] {
    kept.record(own);
    side.wait(kept);
  });
  per_call("event_query", [&] { (void)kept.query(); });
  per_call("record_stream", [&] { guard.recordDataPtrOnStream(x.storage().data_ptr(), side); });
  per_call("aten_add_of_1024", [&] { (void)at::add(x, x); });
}

// ---- a registered memfd as libtorch sees it ----

void pinned() {
  const c10::Device cuda(c10::DeviceType::CUDA, 0);
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  for (const char* const name :
       {"cudaHostRegister", "cudaHostUnregister", "cudaGetLastError", "cudaMalloc",
        "cudaGetDriverEntryPointByVersion", "ncclCommInitRank", "cudaIpcGetMemHandle"}) {
    note(part, std::string("dlsym.") + name,
         ::dlsym(RTLD_DEFAULT, name) != nullptr ? "found" : "not found");
  }
  const auto enter = reinterpret_cast<int (*)(void*, std::size_t, unsigned)>(
      ::dlsym(RTLD_DEFAULT, "cudaHostRegister"));
  const auto leave = reinterpret_cast<int (*)(void*)>(::dlsym(RTLD_DEFAULT, "cudaHostUnregister"));
  const auto device_memory =
      reinterpret_cast<int (*)(void**, std::size_t)>(::dlsym(RTLD_DEFAULT, "cudaMalloc"));
  constexpr std::size_t bytes = 256UL << 20;
  const int file = static_cast<int>(::syscall(SYS_memfd_create, "facts", 1U));
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0)
    throw std::runtime_error("memfd");
  auto* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap");
  std::memset(memory, 0, bytes);
  const auto host = at::from_blob(memory, {static_cast<std::int64_t>(bytes / 4)}, at::kFloat);
  const auto device = at::full({static_cast<std::int64_t>(bytes / 4)}, 3.5,
                               at::TensorOptions(cuda).dtype(at::kFloat));
  const auto copy = [&](const std::string& name) {
    std::vector<double> call, whole;
    const auto side = guard.getStreamFromGlobalPool(cuda);
    guard.synchronizeStream(guard.getStream(cuda));
    for (int k = 0; k < 6; ++k) {
      const double begin = now();
      {
        const c10::StreamGuard on(side);
        host.copy_(device, true);
      }
      call.push_back(now() - begin);
      guard.synchronizeStream(side);
      whole.push_back(now() - begin);
    }
    emit(part, "copy_.non_blocking_returns_after." + name, 1e6 * median(call),
         "us, 256 MiB to the host");
    emit(part, "copy_.rate." + name, static_cast<double>(bytes) / median(whole) / 1e9, "GB/s");
  };
  note(part, "is_pinned.memfd_not_registered", host.is_pinned() ? "true" : "false");
  copy("memfd_not_registered");
  if (enter == nullptr || leave == nullptr) throw std::runtime_error("no cudaHostRegister");
  const int error = enter(memory, bytes, 1);
  note(part, "cudaHostRegister_by_dlsym",
       error == 0 ? "success" : "error " + std::to_string(error));
  if (error == 0) {
    note(part, "is_pinned.memfd_registered", host.is_pinned() ? "true" : "false");
    note(part, "is_pinned.slice_of_it", host.narrow(0, 12345, 1000).is_pinned() ? "true" : "false");
    copy("memfd_registered");
    note(part, "copy_.bytes", host.eq(3.5).all().item<bool>() ? "right" : "WRONG");
    const auto back = at::empty_like(device);
    back.copy_(host, true);
    note(part, "copy_.back_bytes", back.eq(3.5).all().item<bool>() ? "right" : "WRONG");
    emit(part, "cudaHostUnregister_by_dlsym", leave(memory));
    note(part, "is_pinned.after_unregister", host.is_pinned() ? "true" : "false");
  }
  ::munmap(memory, bytes);
  ::close(file);
  if (device_memory != nullptr) {  // foreign device memory as a tensor
    void* at = nullptr;
    if (device_memory(&at, 4096) == 0) {
      const auto view = at::from_blob(at, {1024}, at::TensorOptions(cuda).dtype(at::kFloat));
      view.fill_(2);
      guard.recordDataPtrOnStream(view.storage().data_ptr(), guard.getStreamFromGlobalPool(cuda));
      note(part, "from_blob_of_foreign_device_memory",
           view.add(1).eq(3).all().item<bool>() ? "works" : "WRONG");
    }
  }
}
}  // namespace

int main(int argc, char** argv) {
  const double begin = now();
  caller = std::this_thread::get_id();
  const bool loads = argc > 1 && std::string(argv[1]) == "dlopen";
  if (loads) {
    part = "b_dlopen";
    // No at::hasCUDA() before this: libtorch keeps the first answer of its hooks' registry for
    // good.
    note(part, "guard_registered_before",
         c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) ? "true" : "false");
    const double start = now();
    const bool good = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
    note(part, "dlopen_libtorch_cuda", good ? "success" : ::dlerror());
    emit(part, "dlopen_seconds", now() - start, "s");
  }
  note(part, "guard_registered",
       c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) ? "true" : "false");
  at::set_num_threads(3);  // a number that engine threads can be seen to share or not
  note(part, "has_cuda", at::hasCUDA() ? "true" : "false");
  if (at::hasCUDA()) {
    item("where", where);
    item("exceptions", exceptions);
    item("costs", costs);
    item("pinned", pinned);
  }
  item("threads", threads);
  emit(part, "seconds", now() - begin, "s");
  std::fflush(stdout);
  ::_exit(0);
}
