#include "apps/tutti/doctor/doctor_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/tutti/run/cpu_option.h"
#include "memory/memory_need.h"

namespace tutti::command {
namespace {

// Less than this and not even libtorch's own libraries fit.
constexpr std::uint64_t kLeastMemory = std::uint64_t{256} << 20;

std::string processors_text(const MachineFacts& facts) {
  std::string text =
      fmt::format("{} allowed of {} present", facts.processors_allowed, facts.processors_present);
  if (facts.processor_quota)
    return text +
           fmt::format("; cgroup quota {}: {} to use", *facts.processor_quota, facts.processors);
  return text + "; no cgroup quota";
}

std::string huge_pages_text(const MachineFacts& facts) {
  const std::string shared = facts.huge_pages_shared.empty() ? "unknown" : facts.huge_pages_shared;
  const std::string reserved = facts.huge_pages_free
                                   ? fmt::format("{} reserved ones free", *facts.huge_pages_free)
                                   : "reserved ones unknown";
  return fmt::format("for shared memory: {}; {}", shared, reserved);
}

/// What bounds the instruction sets of workers that are started here without --cpu.
std::string level_of(const MachineFacts& facts) {
  const CpuLevel* level = cpu_level_of(facts.libraries);
  return level == nullptr ? "native" : std::string(level->name);
}

std::string libraries_text(const MachineFacts& facts) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : facts.libraries)
    variables.push_back(fmt::format("{}={}", name, value));
  return variables.empty() ? "no variable bounds their instruction sets"
                           : fmt::format("{}", fmt::join(variables, ", "));
}

std::string links_text(const MachineFacts& facts) {
  return fmt::format(
      "{}; {}; tcp", facts.has_gloo ? "gloo" : "no gloo (Debian: libgloo-dev)",
      facts.mpi.empty() ? "no mpi: " + facts.mpi_problem : fmt::format("mpi ({})", facts.mpi));
}

std::string gpus_text(const MachineFacts& facts) {
  const auto& driver = facts.gpu_driver;
  if (driver.gpus.empty()) {
    return driver.problem.empty() ? "none of NVIDIA's" : fmt::format("none: {}", driver.problem);
  }
  std::vector<std::string> gpus;
  for (const auto& gpu : driver.gpus) {
    gpus.push_back(fmt::format("{} ({}, {} multiprocessors, {})", gpu.name, format_bytes(gpu.bytes),
                               gpu.multiprocessors, gpu.uuid));
  }
  return fmt::format("{}; the driver has CUDA {}.{}", fmt::join(gpus, ", "), driver.cuda / 1000,
                     driver.cuda % 1000 / 10);
}

nlohmann::json gpus_as_json(const MachineFacts& facts) {
  using nlohmann::json;
  auto gpus = json::array();
  for (const auto& gpu : facts.gpu_driver.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"multiprocessors", gpu.multiprocessors},
                    {"memory_bytes", gpu.bytes},
                    {"uuid", gpu.uuid}});
  }
  return {{"on_bus", facts.gpus_on_bus},
          {"driver_cuda", facts.gpu_driver.cuda},
          {"problem", facts.gpu_driver.problem},
          {"visible", std::move(gpus)}};
}

std::string works_text(const std::string& problem) {
  return problem.empty() ? "works" : "does not work: " + problem;
}

}  // namespace

Verdict judge(const MachineFacts& facts) {
  Verdict verdict;
  if (!facts.sealed_memory_problem.empty())
    verdict.problems.push_back("workers cannot share memory: " + facts.sealed_memory_problem);
  if (!facts.life_line_problem.empty())
    verdict.problems.push_back("workers cannot notice each other's end: " +
                               facts.life_line_problem);
  if (facts.memory.empty())
    verdict.notes.emplace_back("available memory is unknown: /proc/meminfo cannot be read");
  for (const MemoryBound& bound : facts.memory)
    if (bound.available < kLeastMemory)
      verdict.problems.push_back(fmt::format("{} has {} of memory left, at least {} is needed",
                                             bound.owner, format_bytes(bound.available),
                                             format_bytes(kLeastMemory)));
  if (facts.processors < facts.processors_allowed)
    verdict.notes.push_back(
        fmt::format("the cgroup's quota leaves {} of {} processors: more workers or threads wait "
                    "for each other",
                    facts.processors, facts.processors_allowed));
  if (facts.huge_pages_shared == "never" || facts.huge_pages_shared == "deny")
    verdict.notes.emplace_back(
        "shared memory gets no huge pages: large models are exchanged somewhat slower; as root: "
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (!facts.libraries.empty() && level_of(facts) == "native")
    verdict.notes.push_back(
        fmt::format("{}: workers on machines without it are refused, or compute other bits alone",
                    libraries_text(facts)));
  if (facts.gpu_driver.gpus.empty() && facts.gpus_on_bus > 0)
    verdict.notes.push_back(fmt::format(
        "{} GPU{} of NVIDIA's cannot be used: {}; Debian's package nvidia-driver has "
        "the driver, and CUDA_VISIBLE_DEVICES may hide GPUs",
        facts.gpus_on_bus, facts.gpus_on_bus == 1 ? "" : "s",
        facts.gpu_driver.problem.empty() ? "none is visible" : facts.gpu_driver.problem));
  if (!facts.gpu_driver.gpus.empty())
    verdict.notes.push_back(fmt::format(
        "a program trains on GPUs with libtorch's library for CUDA, of the version of its "
        "libtorch{}: LD_PRELOAD=…/torch/lib/libtorch_cuda.so (pip install torch{} has it)",
        facts.torch.empty() ? "" : " (" + facts.torch + ")",
        facts.torch.empty() ? "" : "==" + facts.torch));
  if (facts.torch.empty())
    verdict.notes.emplace_back("this tutti was built without libtorch: core only, no DataParallel");
  return verdict;
}

std::string as_text(const MachineFacts& facts, const Verdict& verdict) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view value) {
    fmt::format_to(std::back_inserter(text), "{:<20}{}\n", name, value);
  };
  add("tutti", facts.version);
  add("libtorch", facts.torch.empty() ? "core-only build" : facts.torch);
  add("kernel", facts.kernel);
  add("processors", processors_text(facts));
  add("processor", description_of(facts.processor));
  add("extensions", extensions_of(facts.processor));
  add("run --cpu", fmt::format("can be {} or native; {} unless given",
                               fmt::join(levels_of(facts.processor), ", "), level_of(facts)));
  add("torch, MKL, oneDNN", libraries_text(facts));
  add("SIMD", facts.simd);
  for (const MemoryBound& bound : facts.memory)
    add("memory", fmt::format("{}: {} available of {}", bound.owner, format_bytes(bound.available),
                              format_bytes(bound.limit)));
  add("huge pages", huge_pages_text(facts));
  add("sealed memory", works_text(facts.sealed_memory_problem));
  add("process handles", works_text(facts.life_line_problem));
  add("between workers", "shared memory of a host; TCP between hosts");
  add("links", links_text(facts));
  add("GPUs", gpus_text(facts));
  text += "\n";
  for (const std::string& note : verdict.notes) text += "note: " + note + "\n";
  for (const std::string& problem : verdict.problems) text += "PROBLEM: " + problem + "\n";
  text += verdict.problems.empty()
              ? fmt::format("This machine can train: {} worker{} of one thread use all of it.\n",
                            facts.processors, facts.processors == 1 ? "" : "s")
              : std::string("This machine cannot train as it is.\n");
  return text;
}

nlohmann::json as_json(const MachineFacts& facts, const Verdict& verdict) {
  using nlohmann::json;
  auto memory = json::array();
  for (const MemoryBound& bound : facts.memory)
    memory.push_back({{"owner", bound.owner},
                      {"limit_bytes", bound.limit},
                      {"available_bytes", bound.available}});
  return {
      {"version", facts.version},
      {"libtorch", facts.torch.empty() ? json(nullptr) : json(facts.torch)},
      {"kernel", facts.kernel},
      {"processors",
       {{"present", facts.processors_present},
        {"allowed", facts.processors_allowed},
        {"quota", facts.processor_quota ? json(*facts.processor_quota) : json(nullptr)},
        {"usable", facts.processors}}},
      {"processor",
       {{"architecture", name_of(kArchitecture)},
        {"name", facts.processor.name},
        {"vendor", facts.processor.vendor},
        {"family", facts.processor.family},
        {"model", facts.processor.model},
        {"extensions", extensions_of(facts.processor)}}},
      {"cpu_levels", levels_of(facts.processor)},
      {"cpu_level", level_of(facts)},
      {"library_settings", facts.libraries},
      {"simd", facts.simd},
      {"memory", std::move(memory)},
      {"huge_pages",
       {{"shared", facts.huge_pages_shared},
        {"reserved_free", facts.huge_pages_free ? json(*facts.huge_pages_free) : json(nullptr)}}},
      {"sealed_memory", facts.sealed_memory_problem.empty()},
      {"process_handles", facts.life_line_problem.empty()},
      {"links",
       {{"gloo", facts.has_gloo},
        {"mpi", facts.mpi.empty() ? json(nullptr) : json(facts.mpi)},
        {"tcp", true}}},
      {"gpus", gpus_as_json(facts)},
      {"notes", verdict.notes},
      {"problems", verdict.problems},
      {"can_train", verdict.problems.empty()},
  };
}

}  // namespace tutti::command
