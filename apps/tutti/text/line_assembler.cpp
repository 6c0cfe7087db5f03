#include "apps/tutti/text/line_assembler.h"

#include <algorithm>
#include <utility>

namespace tutti::command {

std::vector<std::string> LineAssembler::feed(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const char next = bytes.front();
    if (next == '\n') complete(lines);
    if (next == '\r') carriage_return_ = true;
    if (next == '\n' || next == '\r') {
      bytes.remove_prefix(1);
      continue;
    }
    if (std::exchange(carriage_return_, false)) {
      text_.clear();
      rewritten_ = true;
    }
    if (text_.size() == kLongestLine) complete(lines);
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), kLongestLine - text_.size());
    text_.append(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end, bytes.size()));
  }
  return lines;
}

std::vector<std::string> LineAssembler::finish() {
  std::vector<std::string> lines;
  if (!text_.empty()) complete(lines);
  return lines;
}

void LineAssembler::complete(std::vector<std::string>& lines) {
  lines.push_back(std::exchange(text_, {}));
  carriage_return_ = rewritten_ = false;
}

}  // namespace tutti::command
