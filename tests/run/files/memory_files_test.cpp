#include "run/files/memory_files.h"

#include <cerrno>

#include <gmock/gmock.h>

#include "run/files/checkpoint_store.h"
#include "run/files/samples.h"
#include "support/text_of.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(MemoryFiles, HoldCheckpointsAsTheHostsFilesDo) {
  const auto files = std::make_shared<MemoryFiles>();
  CheckpointStore store(files, "/runs/first", {.keep = 2});
  EXPECT_THAT(store.steps(), IsEmpty());
  for (const std::int64_t step : {1, 2, 3}) {
    store.save(SampleCheckpoint(step, static_cast<unsigned>(step)).content);
  }
  const SampleCheckpoint again(3, 7);
  store.save(again.content);  // in place of the other
  EXPECT_THAT(store.steps(), ElementsAre(2, 3));
  EXPECT_EQ(bytes_of(store.open(3)), bytes_of(again.content));
  EXPECT_EQ(bytes_of(store.open(2)), bytes_of(SampleCheckpoint(2, 2).content));
}

TEST(MemoryFiles, AreThereUnderTheirNamesAlone) {
  MemoryFiles files;
  files.create_folder("/a");
  files.create_folder("/ab");
  const std::byte one[1] = {};
  write_all(files, files.create("/a/x"), one);
  files.create("/ab/y");
  EXPECT_THAT(files.names_in("/a"), ElementsAre("x"));
  files.rename("/a", "/c");
  EXPECT_FALSE(files.exists("/a") || files.exists("/a/x"));
  EXPECT_EQ(files.size(files.open("/c/x")), 1);
  EXPECT_TRUE(files.exists("/ab/y"));
  files.create("/c/z");
  files.rename("/c/x", "/c/z");  // a file takes the place of another
  EXPECT_EQ(files.size(files.open("/c/z")), 1);
  files.remove_all("/c");
  EXPECT_THAT(files.names_in("/"), UnorderedElementsAre("ab"));
  EXPECT_THAT(text_of<IoError>([&] { files.open("/c/x"); }),
              HasSubstr("cannot open /c/x in memory"));
  EXPECT_THAT(text_of<IoError>([&] { files.open("/ab"); }), HasSubstr("cannot open /ab in memory"));
  EXPECT_THAT(text_of<IoError>([&] { files.create("/ab/y"); }),
              HasSubstr("cannot create /ab/y in memory"));
  EXPECT_THAT(text_of<IoError>([&] { files.create_folder("/ab"); }),
              HasSubstr("cannot make folder"));
  EXPECT_THAT(text_of<IoError>([&] { files.rename("/c", "/d"); }),
              HasSubstr("cannot rename /c in memory"));
}

}  // namespace
}  // namespace tutti::test
