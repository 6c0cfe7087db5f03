#include "apps/tutti/schedule/schedule.h"

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <vector>

#include "apps/tutti/text/refusal.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

constexpr double kMegabyte = 1e6;
constexpr double kMostMegabytes = 1e9;

std::uint64_t bytes_of(const char* option, double megabytes) {
  if (!(megabytes >= 0 && megabytes <= kMostMegabytes)) {
    throw Refusal(kUsageStatus,
                  fmt::format("{} {}: must be 0 to {}", option, megabytes, kMostMegabytes));
  }
  return static_cast<std::uint64_t>(std::llround(megabytes * kMegabyte));
}

PipelineTimeline predicted_timeline(const ScheduleOptions& options) {
  auto costs = options.costs;
  costs.activation_bytes = bytes_of("--activation-mb", options.activation_mb);
  costs.weight_half_bytes = bytes_of("--weight-half-mb", options.weight_half_mb);
  try {
    const auto schedule = PipelineSchedule::named(options.kind, options.workers, options.stages,
                                                  options.micro_batches);
    return simulate(schedule, PipelineCosts::equal(options.stages, costs, options.transfer_ms));
  } catch (const InvalidArgument& error) {
    throw Refusal(kUsageStatus, error.what());
  }
}

void write_picture(const std::string& path, const std::string& svg) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << svg;
  file.close();
  if (file) return;
  const int code = errno;
  throw IoError(code, fmt::format("--svg {}: cannot be written: {}", path,
                                  std::generic_category().message(code)));
}

}  // namespace

void add_schedule_options(CLI::App& app, ScheduleOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return app.add_option(name, value, text)->type_name(type);
  };
  add("--stages", options.stages, "S", "Pieces that the model is cut into")->required();
  add("--micro-batches", options.micro_batches, "V", "Pieces of a step's batch")->required();
  add("--kind", options.kind, "KIND", "gpipe, 1f1b, interleaved or zb-h1. 1f1b unless given");
  add("--workers", options.workers, "N",
      "For interleaved: workers that the stages are dealt to in turn");
  add("--forward", options.costs.forward_ms, "MS",
      "Forward of a micro-batch on a stage. 1 unless given, like the\n"
      "halves of its backward");
  add("--backward-input", options.costs.backward_input_ms, "MS",
      "Its backward, as far as it makes the input's gradient");
  add("--backward-weight", options.costs.backward_weight_ms, "MS",
      "Its backward, as far as it makes the parameters' gradients");
  add("--transfer", options.transfer_ms, "MS", "From one worker to another. 0 unless given");
  add("--activation-mb", options.activation_mb, "MB",
      "What a stage keeps of a micro-batch from forward to backward");
  add("--weight-half-mb", options.weight_half_mb, "MB",
      "What is kept of that between the halves of a backward");
  add("--svg", options.svg, "FILE", "Write a picture; replaced where it exists");
}

int schedule(const ScheduleOptions& options) {
  const auto timeline = predicted_timeline(options);
  if (!options.svg.empty()) write_picture(options.svg, timeline.picture());
  fmt::print("{}", timeline.text());
  return 0;
}

}  // namespace tutti::command
