#include "torch/device/device_arithmetic.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <vector>

#include "base/log_line.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "environment/gpu_driver.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Flags of the process.
struct Flags {
  bool algorithms;
  bool warn_only;
  bool fill;  ///< of memory that nobody has written yet
  bool cudnn;
  bool benchmark;

  static Flags read() {
    const auto& context = at::globalContext();
    return {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
            context.deterministicFillUninitializedMemory(), context.deterministicCuDNN(),
            context.benchmarkCuDNN()};
  }
  void write() const {
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(algorithms, warn_only);
    context.setDeterministicFillUninitializedMemory(fill);
    context.setDeterministicCuDNN(cudnn);
    context.setBenchmarkCuDNN(benchmark);
  }
};

std::mutex flags_mutex;
int users = 0;
std::optional<Flags> before;

const char* text_of(bool flag) { return flag ? "yes" : "no"; }

/// Whether float32 may be rounded to 19 bits in products: libtorch throws where the program has set
/// it by both of its ways.
std::string tf32() {
  const auto told = [](const auto& ask) {
    try {
      return std::string(text_of(ask()));
    } catch (const c10::Error&) {
      return std::string("by precision");
    }
  };
  const auto& context = at::globalContext();
  return fmt::format("of products {}, of convolutions {}",
                     told([&] { return context.allowTF32CuBLAS(); }),
                     told([&] { return context.allowTF32CuDNN(); }));
}

std::string flags_text() {
  const auto flags = Flags::read();
  return fmt::format("algorithms {}, cuDNN {}, benchmark {}", text_of(flags.algorithms),
                     text_of(flags.cudnn), text_of(flags.benchmark));
}

/// Null where the driver does not show it.
const Gpu* gpu_of(const GpuDriver& driver, c10::Device device) {
  const auto number = static_cast<std::size_t>(device.index());
  return number < driver.gpus.size() ? &driver.gpus[number] : nullptr;
}

std::string uuid_of(c10::Device device) {
  if (!device.is_cuda()) return "";
  const auto driver = read_gpu_driver();
  const auto* const gpu = gpu_of(driver, device);
  return gpu != nullptr ? gpu->uuid : "";
}

}  // namespace

/// Memory is not filled where this alone has asked for deterministic algorithms: that finds reads
/// of memory that nobody has written, and costs a write of every new tensor.
DeterministicAlgorithms::DeterministicAlgorithms() {
  const std::lock_guard lock(flags_mutex);
  if (users++ > 0) return;
  before = Flags::read();
  Flags{.algorithms = true,
        .warn_only = false,
        .fill = before->fill && before->algorithms,
        .cudnn = true,
        .benchmark = false}
      .write();
}

DeterministicAlgorithms::~DeterministicAlgorithms() {
  const std::lock_guard lock(flags_mutex);
  if (--users == 0) before->write();
}

void require_deterministic(c10::Device device, const std::string& name) {
  if (!device.is_cuda() || is_cublas_deterministic()) return;
  const char* const value = std::getenv(kCublasWorkspace);
  throw Unsupported(fmt::format(
      "\"{}\" is on {}, and {} is {}: products would have other bits from run to run. "
      "Job::join() sets it where the process has not used a GPU before; set it to :4096:8 before "
      "the program starts, or ask for DataParallelOptions::deterministic = false",
      name, device.str(), kCublasWorkspace,
      value == nullptr ? std::string("not set") : fmt::format("\"{}\"", value)));
}

std::vector<std::pair<std::string, std::string>> device_facts(c10::Device device) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"device", c10::DeviceTypeName(device.type(), /*lower_case=*/true)}};
  if (device.is_cpu()) return facts;
  facts.emplace_back("deterministic", flags_text());
  facts.emplace_back("TF32", tf32());
  if (!device.is_cuda()) return facts;
  const auto driver = read_gpu_driver();
  if (const auto* const gpu = gpu_of(driver, device)) {
    facts.emplace_back("GPU",
                       fmt::format("{}, {} multiprocessors", gpu->name, gpu->multiprocessors));
  }
  facts.emplace_back("CUDA of the driver", std::to_string(driver.cuda));
  const auto& hooks = at::detail::getCUDAHooks();
  if (hooks.hasCUDA()) facts.emplace_back("CUDA", std::to_string(hooks.versionCUDART()));
  if (hooks.hasCuDNN()) facts.emplace_back("cuDNN", std::to_string(hooks.versionCuDNN()));
  return facts;
}

std::map<std::string, std::string> remedies_of_device_facts() {
  const std::string library = "all workers need the same libraries: bits depend on their versions";
  return {{"GPU", "bits depend on it: train on GPUs of one kind"},
          {"deterministic",
           "all workers need the same flags of libtorch's, and the same "
           "DataParallelOptions::deterministic"},
          {"TF32", "bits depend on it: all workers have to set libtorch's precision alike"},
          {"CUDA", library},
          {"cuDNN", library},
          {"CUDA of the driver", "bits may depend on it: all hosts need the same driver"}};
}

void tell_of_shared_devices(const Group& group, c10::Device device) {
  const auto& hosts = group.state()->job().hosts();
  const auto uuid = uuid_of(device);
  const auto mine = uuid.empty() ? fmt::format("device {} of host {}", device.str(),
                                               hosts.host_of(group.job_rank(group.rank())))
                                 : uuid;
  std::map<std::string, std::vector<int>> ranks;
  int rank = 0;
  for (const auto& each : gather_texts(group, mine, {.label = "devices"})) {
    ranks[each].push_back(group.job_rank(rank++));
  }
  if (group.rank() != 0) return;
  for (const auto& [one, sharing] : ranks) {
    if (sharing.size() < 2) continue;
    log_info(fmt::format("ranks {} share {}", fmt::join(sharing, " "), one));
  }
}

}  // namespace tutti
