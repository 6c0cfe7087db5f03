#include "schedule.h"

#include <fmt/format.h>
#include <cerrno>
#include <cmath>
#include <fstream>

#include "refusal.h"
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

PipelineTimeline timeline_of(const ScheduleOptions& options) {
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
  app.add_option("--stages", options.stages, "Pieces that the model is cut into")
      ->type_name("S")
      ->required();
  app.add_option("--micro-batches", options.micro_batches, "Pieces of a step's batch")
      ->type_name("V")
      ->required();
  app.add_option("--kind", options.kind, "gpipe, 1f1b, interleaved or zb-h1. 1f1b unless given")
      ->type_name("KIND");
  app.add_option("--workers", options.workers,
                 "For interleaved: workers that the stages are dealt to in turn")
      ->type_name("N");
  const auto add_ms = [&](const char* name, double& value, const char* text) {
    app.add_option(name, value, text)->type_name("MS");
  };
  add_ms("--forward", options.costs.forward_ms,
         "Forward of a micro-batch on a stage. 1 unless given, like the\n"
         "halves of its backward");
  add_ms("--backward-input", options.costs.backward_input_ms,
         "Its backward, as far as it makes the input's gradient");
  add_ms("--backward-weight", options.costs.backward_weight_ms,
         "Its backward, as far as it makes the parameters' gradients");
  add_ms("--transfer", options.transfer_ms, "From one worker to another. 0 unless given");
  app.add_option("--activation-mb", options.activation_mb,
                 "What a stage keeps of a micro-batch from forward to backward")
      ->type_name("MB");
  app.add_option("--weight-half-mb", options.weight_half_mb,
                 "What is kept of that between the halves of a backward")
      ->type_name("MB");
  app.add_option("--svg", options.svg, "Write a picture; replaced where it exists")
      ->type_name("FILE");
}

int schedule(const ScheduleOptions& options) {
  const auto timeline = timeline_of(options);
  if (!options.svg.empty()) write_picture(options.svg, timeline.picture());
  fmt::print("{}", timeline.text());
  return 0;
}

}  // namespace tutti::command
