// docs/errors.md names every class that is thrown, and the deadlines that there are.

#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "docs/pages.h"
#include "tutti/job.h"

namespace tutti {
namespace {

std::string page() { return text_of(source_folder() / "docs/errors.md"); }

std::set<std::string> all_of(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

// promise: error.h#Error, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(ErrorsPage, NamesEveryClassThatIsThrown) {
  std::set<std::string> known = all_of(page(), "\n\\| `([A-Z]\\w+)(?:\\{[^`]*\\})?` \\| ");
  EXPECT_EQ(known.size(), 11);
  known.insert({"Error", "InternalError"});
  int sources = 0;
  for (const char* folder : {"src", "include"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(source_folder() / folder)) {
      if (!entry.is_regular_file()) continue;
      ++sources;
      for (const auto& name : all_of(text_of(entry.path()), "\\bthrow (?:\\w+::)*([A-Z]\\w*)[({]"))
        EXPECT_TRUE(known.contains(name))
            << entry.path() << " throws " << name << ", which docs/errors.md does not know";
    }
  }
  EXPECT_GT(sources, 50);
}

// promise: errors#deadlines, job.h#seconds
TEST(ErrorsPage, HasTheDeadlinesThatThereAre) {
  using std::chrono::minutes;
  using std::chrono::seconds;
  const JobOptions defaults;
  EXPECT_EQ(defaults.join_deadline, seconds(60));
  EXPECT_EQ(defaults.deadline, minutes(10));
  EXPECT_EQ(defaults.stall_notice, seconds(10));
  EXPECT_THAT(page(), testing::ContainsRegex("for all workers \\| 60 s \\|"));
  EXPECT_THAT(page(), testing::ContainsRegex("any later wait \\| 10 min \\|"));
  EXPECT_THAT(page(), testing::ContainsRegex("first notice of a stall [^|]*\\| 10 s \\|"));
}

}  // namespace
}  // namespace tutti
