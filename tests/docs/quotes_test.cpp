// Code on the pages that names its source is a quotation: the lines stand there, one after another.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "docs/pages.h"

namespace tutti {
namespace {

/// Lines without the indentation that all of them share.
std::string without_margin(const std::vector<std::string>& lines) {
  std::size_t margin = std::string::npos;
  for (const auto& line : lines) margin = std::min(margin, line.find_first_not_of(' '));
  std::string text;
  for (const auto& line : lines) text += (line.empty() ? "" : line.substr(margin)) + "\n";
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The quotation stands in the source, wherever its margin is there.
bool is_quoted(const std::string& quote, const std::vector<std::string>& source) {
  const auto count = static_cast<std::ptrdiff_t>(lines_of(quote).size());
  for (auto at = source.begin(); source.end() - at >= count; ++at) {
    if (without_margin({at, at + count}) == quote) return true;
  }
  return false;
}

TEST(Quotes, StandInTheirSources) {
  int quotes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "docs")) {
    if (entry.path().extension() != ".md") continue;
    const auto page = text_of(entry.path());
    const std::string open = "<!-- ", close = " -->\n```cpp\n";
    for (auto at = page.find(close); at != std::string::npos; at = page.find(close, at + 1)) {
      const auto name = page.rfind(open, at) + open.size();
      const auto source = page.substr(name, at - name);
      const auto begin = at + close.size();
      const auto quote = page.substr(begin, page.find("```", begin) - begin);
      EXPECT_TRUE(is_quoted(quote, lines_of(text_of(source_folder() / source))))
          << entry.path() << " quotes from " << source << " what does not stand there:\n"
          << quote;
      ++quotes;
    }
  }
  EXPECT_GE(quotes, 8);
}

TEST(Quotes, MarginsMayDifferAndLinesMayNot) {
  const std::vector<std::string> source = {"x {", "  if (a) {", "    b();", "", "  }", "}"};
  EXPECT_TRUE(is_quoted("if (a) {\n  b();\n\n}\n", source));
  EXPECT_TRUE(is_quoted("b();\n", source));
  EXPECT_FALSE(is_quoted("if (a) {\nb();\n", source));
  EXPECT_FALSE(is_quoted("if (a) {\n  b();\n}\n", source));
}

}  // namespace
}  // namespace tutti
