#include "torch/model/arithmetic.h"

#include <ATen/Version.h>
#include <ATen/cpu/vec/functional.h>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <torch/version.h>

#include <string_view>

#include "tutti/environment.h"

namespace tutti {
namespace {

/// "2024.2-Product Build 20240605" of "… Version 2024.2-Product Build 20240605 for …"; all where
/// `mark` is not there.
std::string version_in(const std::string& text, std::string_view mark, std::string_view end) {
  const auto at = text.find(mark);
  if (at == std::string::npos) return text;
  const auto begin = at + mark.size();
  return text.substr(begin, std::min(text.find(end, begin), text.size()) - begin);
}

std::string mkl_version() {
  if (!at::hasMKL()) return "";
  return version_in(at::get_mkl_version(), "Version ", " for");
}

std::string onednn_version() {
  if (!at::hasMKLDNN()) return "";
  return version_in(at::get_mkldnn_version(), " v", " (");
}

/// mkl_cbwr_get() by the names under which libraries show it: MKL's own, and libtorch's with MKL
/// inside.
std::string mkl_branch() {
  for (const char* name : {"MKL_CBWR_Get", "mkl_serv_cbwr_get"}) {
    const auto get = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_DEFAULT, name));
    if (get == nullptr) continue;
    constexpr int kBranch = 1;  // MKL_CBWR_BRANCH; values are those of mkl_types.h
    switch (const int branch = get(kBranch)) {
      case 1:
        return "OFF";
      case 2:
        return "AUTO";
      case 3:
        return "COMPATIBLE";
      case 10:
        return "AVX2";
      case 12:
        return "AVX512";
      case 14:
        return "AVX512_E1";
      default:
        return std::to_string(branch);
    }
  }
  return "";
}

}  // namespace

Arithmetic read_arithmetic() {
  return {.processor = read_processor(),
          .settings = Environment::read().libraries,
          .instruction_set = at::get_cpu_capability(),
          .torch = TORCH_VERSION,
          .mkl = mkl_version(),
          .mkl_branch = mkl_branch(),
          .onednn = onednn_version(),
          .c_library = ::gnu_get_libc_version()};
}

std::string instruction_set() { return instruction_set_of(read_arithmetic()); }

RunFingerprint arithmetic_facts() { return noted_facts(read_arithmetic()); }

std::string cpu_level() {
  const CpuLevel* level = cpu_level_of(Environment::read().libraries);
  return level == nullptr ? "" : std::string(level->name);
}

}  // namespace tutti
