#pragma once

// docs/promises.md, read and compared with what it speaks of: the pages and headers that promise
// something, and the tests that would fail.

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// One line of a section: words of the page, and the tests that hold them. No tests: the words say
/// nothing that could fail.
struct Promise {
  std::string words;
  std::vector<std::string> tests;
};

/// What is said of one page or header.
struct PromisesOfPage {
  std::string path;  ///< relative to the repository
  std::vector<Promise> promises;
};

/// A page's text with single blanks, and what of it has to be quoted: sentences and rows of tables
/// of a page; paragraphs of comments of a header, without their slashes.
struct QuotedText {
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::string text;
  std::vector<Part> parts;
};

QuotedText read_page(std::string_view markdown);
QuotedText read_header(std::string_view source);

/// Sections begin with "## path"; their lines are "| words | `Suite.Test`, `Suite.Test` |", or
/// "- words" for what says nothing that could fail. "\|" in words is a pipe, and
/// "first … last" all from the first words to the last.
std::vector<PromisesOfPage> read_promises(std::string_view markdown);

/// What is wrong with a section, each with what to do about it: words that do not stand in the
/// page, or in two places; parts of the page of which no word is quoted; tests that are not among
/// `tests`.
std::vector<std::string> complaints(const PromisesOfPage& promises, const QuotedText& page,
                                    const std::vector<std::string>& tests);

}  // namespace tutti
