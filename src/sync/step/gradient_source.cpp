#include "sync/step/gradient_source.h"

#include <utility>

#include "sync/step/traffic_count.h"

namespace tutti {

TrafficReport traffic_of(std::span<GradientSource* const> sources) {
  auto report = sources.front()->traffic();
  for (const auto* source : sources.subspan(1)) {
    report = merged(std::move(report), source->traffic());
  }
  return report;
}

}  // namespace tutti
