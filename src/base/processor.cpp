#include "base/processor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

namespace tutti {
namespace {

constexpr std::array<std::string_view, 31> kExtensions = {
    "sse4_1",   "avx",      "fma",         "avx2",        "avx_vnni",    "avx512f",  "avx512bw",
    "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8",
    "amx_bf16", "amx_fp16", "avx10_1",     "avx10_2",     "asimd",       "asimdhp",  "bf16",
    "sve",      "sve2",     "asimddp",     "asimdfhm",    "i8mm",        "svebf16",  "svei8mm",
    "sve128",   "sve256",   "sve512"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// "sve256", of the vectors that this process has; "" where there are none.
std::string sve_flag() {
#if defined(__aarch64__)
  const int length = ::prctl(PR_SVE_GET_VL);
  if (length > 0) return fmt::format("sve{}", 8 * (length & PR_SVE_VL_LEN_MASK));
#endif
  return "";
}

}  // namespace

std::string_view name_of(Architecture architecture) noexcept {
  return architecture == Architecture::aarch64 ? "aarch64" : "x86_64";
}

Processor parse_processor(std::string_view cpuinfo) {
  Processor processor;
  // A value that comes again belongs to the next processor.
  const auto take = [](std::string& place, std::string_view value) {
    if (place.empty()) place = value;
  };
  while (!cpuinfo.empty()) {
    const auto end = std::min(cpuinfo.find('\n'), cpuinfo.size());
    const auto line = cpuinfo.substr(0, end);
    cpuinfo.remove_prefix(std::min(end + 1, cpuinfo.size()));
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto key = trimmed(line.substr(0, colon));
    const auto value = trimmed(line.substr(colon + 1));
    if (key == "vendor_id" || key == "CPU implementer") take(processor.vendor, value);
    if (key == "cpu family" || key == "CPU architecture") take(processor.family, value);
    if (key == "model" || key == "CPU part") take(processor.model, value);
    if (key == "model name") take(processor.name, value);
    if ((key == "flags" || key == "Features") && processor.flags.empty()) {
      std::istringstream words{std::string(value)};
      processor.flags.insert(std::istream_iterator<std::string>(words), {});
    }
  }
  return processor;
}

Processor read_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string first;  // the others cost time: the kernel measures the clock of each
  for (std::string line; std::getline(file, line) && !line.empty();) first += line + '\n';
  Processor processor = parse_processor(first);
  if (auto flag = sve_flag(); !flag.empty()) processor.flags.insert(std::move(flag));
  return processor;
}

std::string type_of(const Processor& processor) {
  const auto known = [](const std::string& text) { return text.empty() ? "unknown" : text; };
  return fmt::format("{} family {} model {}", known(processor.vendor), known(processor.family),
                     known(processor.model));
}

std::string description_of(const Processor& processor) {
  if (processor.name.empty()) return type_of(processor);
  return fmt::format("{} ({})", processor.name, type_of(processor));
}

std::string extensions_of(const Processor& processor) {
  std::string text;
  for (const auto name : kExtensions) {
    if (processor.flags.contains(name)) text += fmt::format("{}{}", text.empty() ? "" : " ", name);
  }
  return text.empty() ? "none" : text;
}

}  // namespace tutti
