#include "base/timeline.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace tutti {

Timeline::Timeline(std::string file, int rank, int size)
    : file_(size > 1 ? file + ".rank" + std::to_string(rank) : std::move(file)), rank_(rank) {}

Timeline::~Timeline() {
  const auto microseconds = [](Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  auto events = nlohmann::json::array();
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", rank_},
                    {"args", {{"name", "worker " + std::to_string(rank_)}}}});
  for (const auto& event : events_) {
    events.push_back({{"ph", "X"},
                      {"name", event.name},
                      {"pid", rank_},
                      {"tid", 0},
                      {"ts", microseconds(event.begin.time_since_epoch())},
                      {"dur", microseconds(event.end - event.begin)}});
  }
  std::ofstream out(file_);
  out << nlohmann::json{{"traceEvents", std::move(events)}}.dump();
  if (!out.flush()) log().error("cannot write the timeline {}", file_);
}

void Timeline::add(std::string name, Clock::time_point begin, Clock::time_point end) {
  events_.push_back({std::move(name), begin, end});
}

}  // namespace tutti
