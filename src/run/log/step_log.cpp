#include "run/log/step_log.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "run/log/line_reader.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// The begin of each step log.
std::string magic() {
  return fmt::format(R"({{"format":"{}","version":{},)", kStepLogFormat, kStepLogVersion);
}

std::string header_line(const RunFingerprint& facts, std::int64_t steps) {
  return fmt::format(R"({}"steps":{},"facts":{}}})", magic(), steps, nlohmann::json(facts).dump());
}

File open_log(Files& files, const fs::path& path) {
  if (path.empty()) throw InvalidArgument("a step log needs a file; its name is empty");
  const fs::path absolute = fs::absolute(path);
  ensure_folder(files, absolute.parent_path());
  return files.append(absolute);
}

/// A mistaken name must not overwrite, or continue, another file.
void require_step_log(const Files& files, const File& file, std::uint64_t size) {
  const std::string expected = magic();
  std::string found(std::min<std::uint64_t>(size, expected.size()), '\0');
  read_all(files, file, 0, std::as_writable_bytes(std::span(found)));
  if (!expected.starts_with(found))
    throw InvalidArgument(
        fmt::format("{} is there, and is no step log of version {}: give another name",
                    file.path.string(), kStepLogVersion));
}

/// Bytes up to the end of the last whole line.
std::uint64_t whole_lines(const Files& files, const File& file) {
  LineReader lines(files, file);
  std::uint64_t end = 0;
  while (const auto line = lines.next()) end = lines.begin() + line->size() + 1;
  return end;
}

ordered_json value_of(const Metric& metric) {
  if (metric.kind == MetricKind::gather) return metric.values;
  return metric.value;
}

ordered_json tree_of(std::int64_t step, const StepFigures& figures) {
  ordered_json tree = {{"kind", "metrics"}, {"step", step}, {"applied", figures.applied}};
  if (!figures.applied) tree["dropped_because"] = figures.dropped_because;
  if (!figures.dropped_locally.empty()) tree["dropped_locally"] = figures.dropped_locally;
  tree["loss"] = figures.loss;
  if (figures.gradient_norm) tree["gradient_norm"] = *figures.gradient_norm;
  tree["weight"] = figures.weight;
  tree["rate_factor"] = figures.rate_factor;
  tree["loss_scale"] = figures.loss_scale;
  auto& metrics = tree["metrics"] = ordered_json::object();
  for (const Metric& metric : figures.metrics) metrics[metric.name] = value_of(metric);
  return tree;
}

/// The text that `write` gives, or InvalidArgument where it is not UTF-8.
template <class Write>
std::string utf8(const File& file, std::int64_t step, const Write& write) {
  try {
    return write();
  } catch (const nlohmann::json::type_error&) {
    throw InvalidArgument(fmt::format("step {} cannot be logged in {}: a name or text is not UTF-8",
                                      step, file.path.string()));
  }
}

}  // namespace

StepLog::StepLog(std::shared_ptr<Files> files, const fs::path& path, const RunFingerprint& facts,
                 std::int64_t steps)
    : files_(std::move(files)), file_(open_log(*files_, path)) {
  const std::string header = utf8(file_, steps, [&] { return header_line(facts, steps); });
  const std::uint64_t size = files_->size(file_);
  require_step_log(*files_, file_, size);
  const std::uint64_t kept = steps == 0 ? 0 : whole_lines(*files_, file_);
  if (kept != size) files_->cut(file_, kept);
  append(header);
}

void StepLog::check(Files& files, const fs::path& path) {
  const File file = open_log(files, path);
  require_step_log(files, file, files.size(file));
}

void StepLog::digests(std::int64_t step, const NamedDigests& digests) {
  TUTTI_CHECK(!digests.empty(), "step {} without digests", step);
  // Written as text, because an ordered_json searches all its names for every name that is added.
  append(utf8(file_, step, [&] {
    std::string line = fmt::format(R"({{"kind":"digests","step":{},"digests":{{)", step);
    for (const auto& [name, digest] : digests) {
      if (line.back() != '{') line += ',';
      line += nlohmann::json(name).dump() + ":\"" + digest + '"';
    }
    return line + "}}";
  }));
}

void StepLog::metrics(std::int64_t step, const StepFigures& figures) {
  append(utf8(file_, step, [&] { return tree_of(step, figures).dump(); }));
}

void StepLog::append(std::string line) {
  line += '\n';
  append_whole(*files_, file_, std::as_bytes(std::span(line)));
}

}  // namespace tutti
