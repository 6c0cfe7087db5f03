#include "run/log/step_log_reader.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "kernels/hash.h"
#include "run/log/line_reader.h"
#include "run/log/step_log_line.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::string name_of_line(const File& file, std::uint64_t line) {
  return fmt::format("{} line {}", file.path.string(), line);
}

}  // namespace

StepLogFile::StepLogFile(std::shared_ptr<const Files> files, const std::filesystem::path& path)
    : files_(std::move(files)), file_(files_->open(path)) {
  LineReader lines(*files_, file_);
  std::uint64_t number = 1;
  for (; const auto text = lines.next(); ++number) {
    StepLogLine line = parse_step_log_line(*text, name_of_line(file_, number));
    const bool is_header = line.kind == StepLogLine::Kind::header;
    if (number == 1 && !is_header)
      throw Corrupt(fmt::format("{} does not begin with the header of a step log", path.string()));
    if (line.kind == StepLogLine::Kind::metrics) continue;
    take_back(is_header ? line.step : line.step - 1);
    if (is_header)
      facts_ = std::move(line.facts);
    else
      steps_.push_back({line.step, lines.begin(), number, digest(*text)});
  }
  if (lines.ends_within_line()) unfinished_line_ = number;
  if (number == 1)
    throw Corrupt(fmt::format("{} holds no whole line of a step log", path.string()));
}

void StepLogFile::take_back(std::int64_t step) {
  while (!steps_.empty() && steps_.back().step > step) steps_.pop_back();
}

NamedDigests StepLogFile::digests(const LoggedStep& step) const {
  LineReader lines(*files_, file_, step.offset);
  const auto text = lines.next();
  const std::string where = name_of_line(file_, step.line);
  if (!text || digest(*text) != step.hash) throw Corrupt(where + " has changed while it was read");
  return parse_step_log_line(*text, where).digests;
}

}  // namespace tutti
