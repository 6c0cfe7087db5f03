// A reader who searches for one of the field's words finds the page about it: docs/README.md has
// the word beside a link, and the page has it too.

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "docs/pages.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Keyword {
  std::string word;
  std::string page;  ///< in docs/
};

const std::vector<Keyword> kKeywords = {
    {"all-reduce", "group.md"},
    {"autocast", "how.md"},
    {"bitwise", "numerics.md"},
    {"checkpoint", "checkpoints.md"},
    {"compression", "codecs.md"},
    {"data parallel", "data_parallel.md"},
    {"desync", "diagnosis.md"},
    {"deterministic", "numerics.md"},
    {"DiLoCo", "averaging.md"},
    {"early stopping", "how.md"},
    {"EMA", "how.md"},
    {"embedding", "update.md"},
    {"error feedback", "codecs.md"},
    {"elastic", "errors.md"},
    {"fault tolerance", "errors.md"},
    {"FetchContent", "start.md"},
    {"find_package", "start.md"},
    {"freeze", "how.md"},
    {"GAN", "how.md"},
    {"gdb", "how.md"},
    {"glossary", "design.md"},
    {"gradient accumulation", "data_parallel.md"},
    {"gradient accumulation", "trainer.md"},
    {"gradient clipping", "update.md"},
    {"learning rate", "update.md"},
    {"local SGD", "averaging.md"},
    {"mixed precision", "update.md"},
    {"model averaging", "averaging.md"},
    {"MPI_Allreduce", "data_parallel.md"},
    {"pipeline parallel", "pipeline.md"},
    {"replica", "averaging.md"},
    {"reproducible", "numerics.md"},
    {"resume", "checkpoints.md"},
    {"SyncBatchNorm", "split_layers.md"},
    {"TCPStore", "data_parallel.md"},
    {"top-K", "codecs.md"},
    {"world size", "numerics.md"},
    {"ZeRO", "trainer.md"},
    {"uneven", "how.md"},
};

/// Words that the first page that a reader sees has to have.
const std::vector<std::string> kOfReadme = {"bitwise",
                                            "deterministic",
                                            "data-parallel",
                                            "libtorch",
                                            "C++20",
                                            "world size",
                                            "reproducible",
                                            "checkpoint",
                                            "local SGD",
                                            "compression",
                                            "ZeRO",
                                            "replica",
                                            "fault tolerance",
                                            "gradient accumulation",
                                            "model averaging"};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Whole words. One without capitals may begin a sentence; "ZeRO" is not "zero".
bool has(const std::string& text, const std::string& word) {
  const bool any_case = word == lower(word);
  const auto in = any_case ? lower(text) : text;
  for (auto at = in.find(word); at != std::string::npos; at = in.find(word, at + 1)) {
    const auto end = at + word.size();
    const bool begins = at == 0 || !is_of_word(in[at - 1]);
    // A plural will do.
    if (begins && (end == in.size() || !is_of_word(in[end]) || in[end] == 's')) return true;
  }
  return false;
}

/// Whether a line of the list has the word and leads to the page.
bool leads(const std::string& list, const Keyword& keyword) {
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    if (has(line, keyword.word) && line.find("](" + keyword.page) != std::string::npos) return true;
  }
  return false;
}

/// What a reader who searches would miss.
template <class Read>
std::vector<std::string> missed(const std::vector<Keyword>& keywords, const std::string& list,
                                const Read& read) {
  std::vector<std::string> found;
  for (const auto& keyword : keywords) {
    if (!leads(list, keyword)) {
      found.push_back("the list does not lead from \"" + keyword.word + "\" to " + keyword.page);
    }
    if (!has(read(keyword.page), keyword.word)) {
      found.push_back(keyword.page + " does not have \"" + keyword.word + "\"");
    }
  }
  return found;
}

TEST(Keywords, LeadToTheirPages) {
  const auto docs = source_folder() / "docs";
  EXPECT_THAT(missed(kKeywords, text_of(docs / "README.md"),
                     [&](const std::string& page) { return text_of(docs / page); }),
              IsEmpty());
}

TEST(Keywords, StandInTheReadme) {
  const auto readme = text_of(source_folder() / "README.md");
  for (const auto& word : kOfReadme) EXPECT_TRUE(has(readme, word)) << word;
}

/// What a newcomer has read after so many lines.
std::string beginning_of(const std::string& text, int lines) {
  std::size_t end = 0;
  for (int k = 0; k < lines && end != std::string::npos; ++k) end = text.find('\n', end + 1);
  return text.substr(0, end);
}

TEST(Keywords, OfWhatItIsWhatItNeedsAndHowToStartBeginTheReadme) {
  const auto readme = text_of(source_folder() / "README.md");
  const auto first = beginning_of(readme, 3);
  for (const auto* word : {"bitwise", "deterministic", "data-parallel", "libtorch", "C++20"}) {
    EXPECT_TRUE(has(first, word)) << word;
  }
  const auto page = beginning_of(readme, 40);
  for (const auto* word : {"Linux", "CPU", "one host", "64", "GPUs", "compiler", "CMake", "Python",
                           "script/demo", "tutti doctor", "tutti run", "reproducible"}) {
    EXPECT_TRUE(has(page, word)) << word;
  }
}

TEST(Keywords, ThatLeadNowhereAreNamed) {
  const std::string list = "| [a.md](a.md) | sums | local SGD |\n| [b.md](b.md) | means | ZeRO |\n";
  const auto read = [](const std::string& page) {
    return std::string(page == "a.md" ? "Of local SGD." : "zero");
  };
  EXPECT_THAT(missed({{"local SGD", "a.md"}, {"local SGD", "b.md"}, {"ZeRO", "b.md"}}, list, read),
              ElementsAre("the list does not lead from \"local SGD\" to b.md",
                          "b.md does not have \"local SGD\"", "b.md does not have \"ZeRO\""));
}

}  // namespace
}  // namespace tutti::test
