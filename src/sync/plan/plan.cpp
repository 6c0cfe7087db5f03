#include "sync/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "comm/gather_bytes.h"
#include "kernels/hash.h"
#include "memory/arena.h"
#include "sync/plan/row_list.h"
#include "tutti/error.h"
#include "tutti/group.h"

namespace tutti {
namespace {

constexpr std::size_t kAlignment = 64;

bool is_narrow(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

std::string line_of(std::string_view kind, const TensorSpec& spec) {
  return fmt::format("{} \"{}\" {}{} [{}] strides [{}]{}{}{}", kind, spec.name,
                     spec.is_complex ? "complex, of " : "", name_of(spec.dtype),
                     fmt::join(spec.shape, ", "), fmt::join(spec.strides, ", "),
                     spec.row_sparse ? " row-sparse" : "",
                     spec.is_per_replica ? " per-replica" : "",
                     spec.owner >= 0 ? fmt::format(" of logical worker {}", spec.owner) : "");
}

std::string setting_key(const std::string& name) { return fmt::format("setting \"{}\"", name); }

/// The kind and name that a line describes.
std::string key_of(const std::string& line) {
  const auto close = line.find('"', line.find('"') + 1);
  return close == std::string::npos ? line : line.substr(0, close + 1);
}

std::string rest_of(const std::string& line) {
  const auto key = key_of(line);
  return key.size() < line.size() ? line.substr(key.size() + 1) : std::string("present");
}

/// What `plan` knows to do about a line that differs, or that one of both lacks.
std::set<std::string> remedies_for(const Plan& plan, const std::vector<std::string>& reference,
                                   const std::vector<std::string>& other) {
  const auto line_of_key = [](const std::vector<std::string>& lines, const std::string& key) {
    const auto found = std::ranges::find(lines, key, key_of);
    return found == lines.end() ? std::string() : *found;
  };
  std::set<std::string> texts;
  for (const auto& [key, remedy] : plan.remedies()) {
    if (line_of_key(reference, key) != line_of_key(other, key)) texts.insert(remedy);
  }
  return texts;
}

}  // namespace

Plan::Plan(std::vector<TensorSpec> parameters, std::vector<TensorSpec> buffers,
           const std::vector<std::pair<std::string, std::string>>& settings,
           const std::map<std::string, std::string>& remedies) {
  for (auto& spec : parameters) {
    PlanEntry entry{};
    entry.node_type = is_narrow(spec.dtype) ? DType::float32 : spec.dtype;
    const auto count = static_cast<std::size_t>(spec.is_summed_elsewhere ? 0 : spec.count);
    entry.node_bytes = round_up(count * size_of(entry.node_type), kAlignment);
    entry.result_bytes = round_up(count * size_of(spec.dtype), kAlignment);
    lines_.push_back(line_of("parameter", spec));
    entry.spec = std::move(spec);
    auto& end = entry.row_sparse() ? list_bytes_ : slot_bytes_;
    entry.node_offset = end;
    end += entry.row_sparse() ? round_up(RowRoom::bytes(entry), kPageBytes) : entry.node_bytes;
    parameters_.push_back(std::move(entry));
  }
  slot_bytes_ = round_up(slot_bytes_, kPageBytes);
  base_bytes_ = slot_bytes_;
  for (auto& entry : parameters_) {
    if (entry.row_sparse()) continue;
    if (is_narrow(entry.spec.dtype)) {
      entry.result_offset = base_bytes_;
      base_bytes_ += entry.result_bytes;
    } else {
      entry.result_offset = entry.node_offset;
    }
  }
  for (auto& spec : buffers) {
    const auto bytes = static_cast<std::size_t>(spec.count) * size_of(spec.dtype);
    lines_.push_back(line_of("buffer", spec));
    buffers_.push_back({std::move(spec), base_bytes_, bytes});
    base_bytes_ += round_up(bytes, kAlignment);
  }
  base_bytes_ = round_up(base_bytes_, kPageBytes);
  for (const auto& [name, value] : settings) {
    lines_.push_back(fmt::format("{} {}", setting_key(name), value));
  }
  for (const auto& [name, remedy] : remedies) remedies_.emplace(setting_key(name), remedy);
  for (const auto& line : lines_) hash_ = digest(line, hash_ + 1);
}

std::size_t Plan::slot_offset(int slot) const {
  if (slot == 0) return 0;
  return base_bytes_ + list_bytes_ +
         static_cast<std::size_t>(slot - 1) * (slot_bytes_ + list_bytes_);
}

std::size_t Plan::node_place(std::size_t parameter, int slot) const {
  const auto& entry = parameters_[parameter];
  const auto lists = slot == 0 ? base_bytes_ : slot_offset(slot) + slot_bytes_;
  return (entry.row_sparse() ? lists : slot_offset(slot)) + entry.node_offset;
}

std::vector<std::string> plan_differences(const std::vector<std::string>& reference,
                                          const std::vector<std::string>& other, std::size_t most) {
  std::vector<std::string> differences;
  std::size_t left_out = 0;
  const auto add = [&](std::string text) {
    if (differences.size() < most) {
      differences.push_back(std::move(text));
    } else {
      ++left_out;
    }
  };
  std::unordered_map<std::string, std::size_t> there;
  for (std::size_t i = 0; i < other.size(); ++i) there.emplace(key_of(other[i]), i);
  std::unordered_map<std::string, std::size_t> here;
  for (std::size_t i = 0; i < reference.size(); ++i) here.emplace(key_of(reference[i]), i);
  for (const auto& line : reference) {
    const auto key = key_of(line);
    const auto found = there.find(key);
    if (found == there.end()) {
      add(fmt::format("lacks {}", line));
    } else if (other[found->second] != line) {
      add(fmt::format("{} is {}, not {}", key, rest_of(other[found->second]), rest_of(line)));
    }
  }
  for (const auto& line : other) {
    if (!here.contains(key_of(line))) add(fmt::format("has {} in addition", line));
  }
  if (differences.empty()) {
    for (std::size_t i = 0; i < std::min(reference.size(), other.size()); ++i) {
      if (reference[i] == other[i]) continue;
      add(fmt::format("registers {} at position {}, where {} should be", key_of(other[i]), i,
                      key_of(reference[i])));
      break;
    }
  }
  if (left_out > 0) differences.push_back(fmt::format("… and {} more", left_out));
  return differences;
}

void require_equal_plans(const Group& group, const Plan& plan) {
  const auto size = static_cast<std::int64_t>(group.size());
  const auto mine = plan.hash();
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(size));
  group.all_gather({&mine, sizeof mine, DType::uint8},
                   {hashes.data(), size * std::int64_t{sizeof mine}, DType::uint8},
                   {.label = "plan"});
  if (std::ranges::count(hashes, mine) == size) return;
  std::string text;
  for (const auto& line : plan.lines()) text += line + '\n';
  const auto texts = gather_texts(group, text, {.label = "plan texts"});
  const auto lines_of = [](std::string_view part) {
    std::vector<std::string> lines;
    while (!part.empty()) {
      const auto end = part.find('\n');
      lines.emplace_back(part.substr(0, end));
      part.remove_prefix(end + 1);
    }
    return lines;
  };
  constexpr std::size_t kMaxLines = 5;
  std::string report = "the workers' models or settings differ:";
  std::set<std::string> remedies;
  const auto reference = lines_of(texts[0]);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    const auto lines = lines_of(texts[r]);
    for (const auto& difference : plan_differences(reference, lines, kMaxLines)) {
      report += fmt::format("\n  rank {}, unlike rank {}: {}", group.job_rank(static_cast<int>(r)),
                            group.job_rank(0), difference);
    }
    remedies.merge(remedies_for(plan, reference, lines));
  }
  for (const auto& remedy : remedies) report += fmt::format("\n  {}", remedy);
  throw Mismatch(report);
}

}  // namespace tutti
