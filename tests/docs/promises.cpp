#include "docs/promises.h"

#include <algorithm>
#include <cctype>
#include <regex>

namespace tutti {
namespace {

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string with_single_blanks(std::string_view text) {
  std::string result;
  for (const char c : trimmed(text)) {
    if (!is_blank(c))
      result += c;
    else if (result.back() != ' ')
      result += ' ';
  }
  return result;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    lines.push_back(trimmed(text.substr(0, end + 1)));
    text.remove_prefix(end + 1);
  }
  return lines;
}

bool begins_sentence(std::string_view text) {
  return !text.empty() && (std::isupper(static_cast<unsigned char>(text.front())) != 0 ||
                           std::string_view("`*[(\"_").find(text.front()) != text.npos);
}

/// Collects runs of lines; each becomes one part, several, or none.
class Writer {
 public:
  enum class As { nothing, one_part, sentences };

  void add(std::string_view line) { run_.append(line).append(" "); }
  void end_run(As as) {
    const std::string run = with_single_blanks(run_);
    run_.clear();
    if (run.empty()) return;
    if (!page_.text.empty()) page_.text += ' ';
    const std::size_t begin = page_.text.size();
    page_.text += run;
    if (as == As::one_part) page_.parts.push_back({begin, page_.text.size()});
    if (as == As::sentences) cut(begin);
  }
  QuotedText result() { return std::move(page_); }

 private:
  void cut(std::size_t begin) {
    const std::string_view text = page_.text;
    for (std::size_t at = begin; at < text.size(); ++at) {
      std::size_t end = at + 1;
      if (std::string_view(".?!").find(text[at]) == text.npos) continue;
      while (end < text.size() && std::string_view(")*\"").find(text[end]) != text.npos) ++end;
      if (end == text.size() || text[end] != ' ' || !begins_sentence(text.substr(end + 1)))
        continue;
      // "**Memory.**" belongs to the sentence that follows.
      if (text.substr(begin, 2) == "**" && text.find("**", begin + 2) + 2 == end) continue;
      page_.parts.push_back({begin, end});
      begin = end + 1;
    }
    page_.parts.push_back({begin, text.size()});
  }

  std::string run_;
  QuotedText page_;
};

bool begins_item(std::string_view line) {
  return line.starts_with("- ") ||
         std::regex_search(line.begin(), line.end(), std::regex("^[0-9]+\\. "));
}

bool is_rule_of_table(std::string_view line) { return line.starts_with("|--"); }

/// The first two slashes and what follows them of a line that is a comment, else nothing.
std::string_view comment_of(std::string_view line) {
  if (!line.starts_with("//")) return {};
  line.remove_prefix(line.starts_with("///") ? 3 : 2);
  return trimmed(line);
}

/// In a table "\|" stands for a pipe.
std::string without_escapes(std::string_view words) {
  return std::regex_replace(with_single_blanks(words), std::regex("\\\\\\|"), "|");
}

struct Place {
  int times = 0;  ///< at most 2
  QuotedText::Part part;
};

/// Of "first words … last words", all from the first to the last.
Place place_of(const std::string& words, const std::string& text) {
  constexpr std::string_view kTo = " … ";
  const std::size_t at = text.find(words);
  if (const std::size_t gap = words.find(kTo); at == text.npos && gap != words.npos) {
    Place first = place_of(words.substr(0, gap), text);
    const Place last = place_of(words.substr(gap + kTo.size()), text);
    first.times = std::min(first.times, last.times) == 0 ? 0 : std::max(first.times, last.times);
    first.part.end = last.part.end;
    return first;
  }
  if (at == text.npos) return {};
  return {text.find(words, at + 1) == text.npos ? 1 : 2, {at, at + words.size()}};
}

}  // namespace

QuotedText read_page(std::string_view markdown) {
  using As = Writer::As;
  Writer writer;
  const std::vector<std::string_view> lines = lines_of(markdown);
  bool in_code = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    if (line.starts_with("```") || in_code) {
      writer.end_run(in_code ? As::nothing : As::sentences);
      in_code = line.starts_with("```") ? !in_code : in_code;
      writer.add(line);
      if (!in_code) writer.end_run(As::nothing);
    } else if (line.starts_with("#") || line.starts_with("<!--") || is_rule_of_table(line)) {
      writer.end_run(As::sentences);
      writer.add(line);
      writer.end_run(As::nothing);
    } else if (line.starts_with("|")) {
      writer.end_run(As::sentences);
      writer.add(line);
      const bool is_head = i + 1 < lines.size() && is_rule_of_table(lines[i + 1]);
      writer.end_run(is_head ? As::nothing : As::one_part);
    } else {
      if (line.empty() || begins_item(line)) writer.end_run(As::sentences);
      writer.add(line.starts_with("> ") ? line.substr(2) : line);
    }
  }
  writer.end_run(As::sentences);
  return writer.result();
}

QuotedText read_header(std::string_view source) {
  using As = Writer::As;
  Writer writer;
  bool in_comment = false;
  for (const std::string_view line : lines_of(source)) {
    const bool is_comment = line.starts_with("//");
    // An indented program in a comment is not prose, but belongs to its paragraph.
    if (is_comment != in_comment || (is_comment && comment_of(line).empty()))
      writer.end_run(in_comment ? As::one_part : As::nothing);
    writer.add(is_comment ? comment_of(line) : line);
    in_comment = is_comment;
  }
  writer.end_run(in_comment ? As::one_part : As::nothing);
  return writer.result();
}

std::vector<PromisesOfPage> read_promises(std::string_view markdown) {
  const std::regex in_quotes("`([^`]+)`");
  std::vector<PromisesOfPage> pages;
  for (const std::string_view line : lines_of(markdown)) {
    if (line.starts_with("## ")) pages.push_back({std::string(line.substr(3)), {}});
    if (pages.empty()) continue;
    std::vector<Promise>& promises = pages.back().promises;
    if (line.starts_with("- ")) promises.push_back({without_escapes(line.substr(2)), {}});
    if (!line.starts_with("| ") || line.starts_with("| promise |")) continue;
    const std::size_t border = line.find(" | ");
    Promise promise{without_escapes(line.substr(2, border - 2)), {}};
    const std::string tests(border == line.npos ? "" : line.substr(border));
    for (std::sregex_iterator test(tests.begin(), tests.end(), in_quotes), end; test != end; ++test)
      promise.tests.push_back((*test)[1]);
    if (promise.tests.empty()) promise.tests.emplace_back("(no test is named)");
    promises.push_back(std::move(promise));
  }
  return pages;
}

std::vector<std::string> complaints(const PromisesOfPage& promises, const QuotedText& page,
                                    const std::vector<std::string>& tests) {
  std::vector<std::string> found;
  std::vector<QuotedText::Part> quoted;
  for (const Promise& promise : promises.promises) {
    const Place place = place_of(promise.words, page.text);
    if (place.times == 0) {
      found.push_back("docs/promises.md quotes what does not stand in " + promises.path + ": \"" +
                      promise.words +
                      "\". Where the sentence has changed, change its test with it, then quote the "
                      "new words; where it has gone, its line goes.");
      continue;
    }
    if (place.times > 1)
      found.push_back("docs/promises.md quotes what stands twice in " + promises.path + ": \"" +
                      promise.words + "\". Quote more words.");
    quoted.push_back(place.part);
    for (const std::string& test : promise.tests)
      if (std::find(tests.begin(), tests.end(), test) == tests.end())
        found.push_back("docs/promises.md names a test that is not there: " + test + ", for \"" +
                        promise.words + "\" of " + promises.path +
                        ". Name the one that fails when this is broken.");
  }
  for (const QuotedText::Part& part : page.parts) {
    const bool is_quoted = std::any_of(quoted.begin(), quoted.end(), [&](const auto& words) {
      return words.begin < part.end && part.begin < words.end;
    });
    if (!is_quoted)
      found.push_back(
          "docs/promises.md has no line for what " + promises.path + " says: \"" +
          page.text.substr(part.begin, part.end - part.begin) +
          "\". Name the test that fails when this is broken, write it if there is none, "
          "or put some of its words into the list of what says nothing that could fail.");
  }
  return found;
}

}  // namespace tutti
