#include "timeline_merge.h"

#include <fmt/format.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "refusal.h"

namespace tutti::command {
namespace {

constexpr int kNotMerged = 1;

nlohmann::json events_of(const std::string& part) {
  auto parsed = nlohmann::json::parse(part, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("traceEvents") || !parsed["traceEvents"].is_array())
    throw Refusal(kNotMerged, "not a complete timeline");
  return std::move(parsed["traceEvents"]);
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return {};
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  return !stream.fail();
}

}  // namespace

std::string merge_timelines(std::span<const std::string> parts) {
  auto events = nlohmann::json::array();
  for (std::size_t index = 0; index < parts.size(); ++index) {
    try {
      for (auto& event : events_of(parts[index])) events.push_back(std::move(event));
    } catch (const Refusal& refusal) {
      throw Refusal(refusal.status(), fmt::format("part {}: {}", index, refusal.what()));
    }
  }
  return nlohmann::json{{"traceEvents", std::move(events)}}.dump();
}

std::string timeline_part(const std::string& file, int rank) {
  return fmt::format("{}.rank{}", file, rank);
}

void remove_timeline_parts(const std::string& file, int workers) {
  std::error_code ignored;
  for (int rank = 0; rank < workers; ++rank)
    std::filesystem::remove(timeline_part(file, rank), ignored);
}

void remove_timeline(const std::string& file, int workers) {
  std::error_code ignored;
  remove_timeline_parts(file, workers);
  std::filesystem::remove(file, ignored);
}

std::vector<std::string> merge_timeline_files(const std::string& file, int workers) {
  std::vector<std::string> problems;
  std::vector<std::string> parts;
  std::vector<std::string> merged_paths;
  for (int rank = 0; rank < workers; ++rank) {
    const std::string path = timeline_part(file, rank);
    auto part = read_file(path);
    if (!part) continue;
    try {
      events_of(*part);
    } catch (const Refusal& refusal) {
      problems.push_back(fmt::format("timeline {}: {}; left out", path, refusal.what()));
      continue;
    }
    parts.push_back(std::move(*part));
    merged_paths.push_back(path);
  }
  if (parts.empty()) return problems;
  const std::string unfinished = file + ".merging";
  std::error_code failure;
  if (write_file(unfinished, merge_timelines(parts))) {
    std::filesystem::rename(unfinished, file, failure);
  } else {
    failure = std::error_code(errno, std::generic_category());
  }
  if (failure) {
    problems.push_back(fmt::format("timeline {}: {}; the workers' parts are left as they are", file,
                                   failure.message()));
    std::filesystem::remove(unfinished, failure);
    return problems;
  }
  for (const std::string& path : merged_paths) std::filesystem::remove(path, failure);
  return problems;
}

}  // namespace tutti::command
