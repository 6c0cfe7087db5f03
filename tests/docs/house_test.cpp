// How large the pieces of src/, apps/ and include/ are, and whether sources of one folder need each
// other in a circle. What is too large today stands in house_exceptions.txt, which may only shrink.

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "docs/house_exceptions.h"
#include "docs/source_files.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Names = std::set<std::string>;
using Counts = std::map<std::string, std::size_t>;  ///< of what is too large, by "kind where"

constexpr std::size_t kMostLines = 350;  ///< of a source
constexpr std::size_t kMostSources =
    25;  ///< of a folder, a header and the source of its name being one
constexpr std::size_t kMostFunctions = 40;  ///< that a class declares

/// norm.h, norm.cpp and norm-inl.h, which Highway reads once for each target, are one source.
std::string stem_of(const fs::path& file) {
  auto stem = file.stem().string();
  if (stem.ends_with("-inl")) stem.resize(stem.size() - 4);
  return stem;
}

/// Without comments, what quotes hold, and the preprocessor's lines.
std::string code_of(const std::string& text) {
  static const std::regex kOther(R"(//[^\n]*|"(?:\\.|[^"\\\n])*"|(?:^|\n)#(?:\\\n|[^\n])*)");
  return std::regex_replace(text, kOther, " ");
}

/// The declarations in a class whose body begins at `at`: bodies of functions and of inner classes
/// are "{}".
std::string declarations_at(const std::string& code, std::size_t at) {
  std::string found;
  for (int depth = 1; at < code.size(); ++at) {
    if (code[at] == '{' && depth++ == 1) found += "{}";
    if (code[at] == '}' && --depth == 0) break;
    if (depth == 1 && code[at] != '}') found += code[at];
  }
  return found;
}

/// What stands in template arguments is no declaration.
std::string without_arguments(std::string text) {
  static const std::regex kInnermost("<[^<>]*>");
  for (std::string before; before != text;) {
    before = text;
    text = std::regex_replace(before, kInnermost, "");
  }
  return text;
}

std::size_t functions_in(const std::string& declarations) {
  static const std::regex kEnd(R"(;|\{\})");
  static const std::regex kFunction(R"((?:\w|operator\s*[^\s\w(]+|operator\(\))\s*\()");
  static const std::regex kOther(R"(^\s*(?:using|friend|static_assert|enum|class|struct)\b)");
  static const std::regex kAccess(R"((?:public|private|protected)\s*:)");
  const auto text = std::regex_replace(declarations, kAccess, "");
  std::size_t count = 0;
  for (std::sregex_token_iterator part(text.begin(), text.end(), kEnd, -1), end; part != end;
       ++part) {
    const std::string declaration = *part;
    if (std::regex_search(declaration, kOther)) continue;
    // `= f(x)` is a member's value.
    const auto is_operator = declaration.find("operator") != std::string::npos;
    const auto head = is_operator ? declaration : declaration.substr(0, declaration.find('='));
    if (std::regex_search(without_arguments(head), kFunction)) ++count;
  }
  return count;
}

/// How many functions each class of a header declares.
Counts functions_of(const std::string& header) {
  static const std::regex kClass(
      R"(\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?\s*(?::[^;{]*)?\{)");
  const auto code = code_of(header);
  Counts found;
  for (std::sregex_iterator at(code.begin(), code.end(), kClass), end; at != end; ++at) {
    const auto begin = static_cast<std::size_t>(at->position() + at->length());
    found[(*at)[1]] = functions_in(declarations_at(code, begin));
  }
  return found;
}

/// Sources of one folder, by name, that each reach the other by includes: one entry for each
/// circle.
Counts circles(const std::vector<SourceFile>& all) {
  std::map<std::string, std::map<std::string, Names>> folders;  // source → those that it includes
  for (const auto& source : all) {
    const auto folder = source.folder();
    auto& direct = folders[folder][stem_of(source.name)];
    for (const fs::path include : includes_of(source.text)) {
      const auto of = include.parent_path().string();
      const bool is_here =
          of.empty() ? folder.starts_with("apps") : folder == of || folder == "src/" + of;
      if (is_here && stem_of(include) != stem_of(source.name)) direct.insert(stem_of(include));
    }
  }
  Counts found;
  for (const auto& [folder, direct] : folders) {
    std::map<std::string, Names> reached;
    for (const auto& [name, includes] : direct) {
      Names& all_of_it = reached[name];
      std::vector<std::string> open(includes.begin(), includes.end());
      while (!open.empty()) {
        const auto next = open.back();
        open.pop_back();
        const auto more = direct.find(next);
        if (more == direct.end() || !all_of_it.insert(next).second) continue;
        open.insert(open.end(), more->second.begin(), more->second.end());
      }
    }
    for (const auto& [name, all_of_it] : reached) {
      std::string text;
      std::size_t size = 0;
      bool is_first = true;
      for (const auto& other : all_of_it) {
        if (!reached[other].contains(name)) continue;
        is_first = is_first && name <= other;
        text += (size++ == 0 ? "" : "+") + other;
      }
      if (size > 1 && is_first) found["circle " + folder + ":" + text] = size;
    }
  }
  return found;
}

Counts too_large(const std::vector<SourceFile>& all) {
  Counts found = circles(all);
  std::map<std::string, Names> stems;
  for (const auto& source : all) {
    const auto lines = static_cast<std::size_t>(std::ranges::count(source.text, '\n'));
    if (lines > kMostLines) found["source " + source.name] = lines;
    if (!source.name.starts_with("include/")) stems[source.folder()].insert(stem_of(source.name));
    if (!source.name.ends_with(".h")) continue;
    for (const auto& [name, count] : functions_of(source.text)) {
      if (count > kMostFunctions) found["class " + source.name + ":" + name] = count;
    }
  }
  for (const auto& [folder, names] : stems) {
    if (names.size() > kMostSources) found["folder " + folder] = names.size();
  }
  return found;
}

/// What is too large is cut; the list follows what has become smaller.
std::vector<std::string> differences(const Counts& found, const Counts& listed) {
  std::vector<std::string> texts;
  for (const auto& [piece, count] : found) {
    const auto at = listed.find(piece);
    const std::size_t may = at == listed.end() ? 0 : at->second;
    if (count != may) {
      texts.push_back(piece + " has " + std::to_string(count) + ", and in house_exceptions.txt " +
                      std::to_string(may));
    }
  }
  for (const auto& [piece, count] : listed) {
    if (!found.contains(piece)) texts.push_back(piece + " may leave house_exceptions.txt");
  }
  return texts;
}

TEST(House, HasNoPieceThatIsTooLargeButThoseOfTheList) {
  const auto all = source_files();
  EXPECT_GT(all.size(), 500U);
  EXPECT_THAT(differences(too_large(all), house_exceptions(/*of_includes=*/false)), IsEmpty());
}

TEST(House, FunctionsAreCountedWhereTheyAreDeclared) {
  const std::string header = R"cpp(
    /// Calls f(x); and g().
    class One : public Two<int(float)> {
     public:
      One() = default;
      explicit One(int x) : x_(x) {}
      ~One();
      bool operator==(const One& other) const { return x_ == f(other.x_); }
      static std::string text(const std::string& name = "f()");
      virtual void go(std::function<void(int)> call) = 0;
      struct Inner {
        int a() const;
        std::vector<int> b = make(3);
      };
      enum class Kind { a, b };
      using Call = void (*)(int);

     private:
      friend void other(One&);
      std::function<void(int)> call_ = nothing();
      int x_ = 0;
    };
  )cpp";
  EXPECT_THAT(functions_of(header), ElementsAre(Pair("Inner", 1), Pair("Kind", 0), Pair("One", 6)));
}

TEST(House, CirclesFoldersAndSourcesAreNamed) {
  std::vector<SourceFile> all = {
      {"src/run/a.h", "#include \"run/b.h\"\n"},
      {"src/run/b.h", "struct A;\n"},
      {"src/run/b.cpp", "#include \"run/b.h\"\n#include \"run/c.h\"\n"},
      {"src/run/c.cpp", "#include \"run/a.h\"\n#include \"base/a.h\"\n"},
      {"src/run/d.h", "#include \"run/a.h\"\n"},
      {"apps/tutti/run/run.cpp", std::string(351, '\n') + "#include \"apps/tutti/run/plan.h\"\n"},
      {"apps/tutti/run/plan.h", "\n#include \"run.h\"\n"},
  };
  EXPECT_THAT(too_large(all), ElementsAre(Pair("circle apps/tutti/run:plan+run", 2),
                                          Pair("circle src/run:a+b+c", 3),
                                          Pair("source apps/tutti/run/run.cpp", 352)));
  all.clear();
  for (int i = 0; i < 26; ++i) all.push_back({"src/run/s" + std::to_string(i) + ".h", ""});
  EXPECT_THAT(too_large(all), ElementsAre(Pair("folder src/run", 26)));
}

TEST(House, TheListFollowsWhatHasBecomeSmaller) {
  EXPECT_THAT(differences({{"folder a", 30}, {"folder b", 27}, {"folder c", 26}},
                          {{"folder a", 30}, {"folder b", 28}, {"folder d", 26}}),
              ElementsAre("folder b has 27, and in house_exceptions.txt 28",
                          "folder c has 26, and in house_exceptions.txt 0",
                          "folder d may leave house_exceptions.txt"));
}

}  // namespace
}  // namespace tutti::test
