#include "line_assembler.h"

#include <algorithm>
#include <utility>

namespace tutti::command {

std::vector<std::string> LineAssembler::feed(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (end > 0) append(bytes.substr(0, end), lines);
    if (end == bytes.size()) break;
    if (bytes[end] == '\n') {
      complete(lines);
    } else {
      carriage_return_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
  return lines;
}

std::vector<std::string> LineAssembler::finish() {
  std::vector<std::string> lines;
  if (!text_.empty()) complete(lines);
  return lines;
}

void LineAssembler::append(std::string_view bytes, std::vector<std::string>& lines) {
  if (carriage_return_) {
    text_.clear();
    carriage_return_ = false;
    rewritten_ = true;
  }
  while (text_.size() + bytes.size() > kLongestLine) {
    const std::size_t room = kLongestLine - text_.size();
    text_.append(bytes.substr(0, room));
    bytes.remove_prefix(room);
    complete(lines);
  }
  text_.append(bytes);
}

void LineAssembler::complete(std::vector<std::string>& lines) {
  lines.push_back(std::exchange(text_, {}));
  carriage_return_ = false;
  rewritten_ = false;
}

}  // namespace tutti::command
