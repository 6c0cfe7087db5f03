#include "torch/model/arithmetic.h"

#include <ATen/Version.h>
#include <ATen/cpu/vec/functional.h>
#include <torch/version.h>

#include <cstdlib>
#include <fstream>
#include <string_view>

namespace tutti {
namespace {

/// Variables that control MKL and oneDNN. ATEN_CPU_CAPABILITY is part of libtorch's own
/// description.
constexpr const char* kVariables[] = {"MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
                                      "DNNL_MAX_CPU_ISA"};

/// The name that the processor gives itself; "" where it has none.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  constexpr std::string_view kName = "model name";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    const auto begin = line.find_first_not_of(" \t:", kName.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

}  // namespace

std::string instruction_set() {
  std::string text = at::get_cpu_capability();
  for (const char* name : kVariables) {
    const char* const value = std::getenv(name);
    if (value != nullptr) text += std::string(", ") + name + "=" + value;
  }
  return text;
}

RunFingerprint arithmetic_facts() {
  return {
      {"torch", TORCH_VERSION}, {"instruction set", instruction_set()}, {"processor", processor()}};
}

}  // namespace tutti
