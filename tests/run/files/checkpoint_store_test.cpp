#include "run/files/checkpoint_store.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>

#include "run/files/samples.h"
#include "support/running_command.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Store : public ::testing::Test {
 protected:
  CheckpointStore store(const CheckpointOptions& options = {}) const {
    return {host_files(), dir_, options};
  }
  void save(std::int64_t step, const CheckpointOptions& options = {}) const {
    store(options).save(SampleCheckpoint(step, static_cast<unsigned>(step)).content);
  }
  std::string path(std::int64_t step, const std::string& file = "") const {
    return fmt_step(step) + (file.empty() ? "" : "/" + file);
  }
  std::string fmt_step(std::int64_t step) const {
    const std::string digits = std::to_string(step);
    return dir_ + "/step-" + std::string(8 - digits.size(), '0') + digits;
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(file, std::ios::binary) << text;
  }

  TemporaryFolder folder_;
  std::string dir_ = folder_.file("runs/first");
};

TEST_F(Store, GivesBackWhatWasSaved) {
  const SampleCheckpoint sample(200, 7);
  store().save(sample.content);
  const Checkpoint checkpoint = store().open(200);
  EXPECT_EQ(checkpoint.folder(), path(200));
  EXPECT_EQ(checkpoint.manifest().step, 200);
  EXPECT_EQ(checkpoint.manifest().facts, sample.content.facts);
  EXPECT_EQ(checkpoint.manifest().state, sample.content.state);
  EXPECT_EQ(bytes_of(checkpoint), bytes_of(sample.content));
  EXPECT_EQ(checkpoint.file("optimizer.safetensors").metadata().at("optimizer"), "adam");
  EXPECT_EQ(text_of([&] { checkpoint.file("other"); }), path(200) + " has no file \"other\"");
}

// promise: trainer.h#keep
TEST_F(Store, ListsStepsInOrderAndNothingElse) {
  EXPECT_THAT(store().steps(), IsEmpty());
  EXPECT_FALSE(store().newest());
  EXPECT_FALSE(fs::exists(dir_)) << "reading makes nothing";
  for (const std::int64_t step : {300, 0, 1000, 20}) save(step);
  for (const char* other : {"step-20", "step-000000020", "step-0000002x", "xstep-00000005",
                            "step-00000005.part-1", "step--0000005", "step-", "step", "s", "notes"})
    fs::create_directory(dir_ + "/" + other);
  EXPECT_THAT(store().steps(), ElementsAre(0, 20, 300, 1000));
  EXPECT_EQ(store().newest(), 1000);
  save(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(store().newest(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(text_of([&] { store().open(21); }), dir_ + " has no checkpoint of step 21");
}

// promise: trainer.h#keep
TEST_F(Store, KeepsTheNewestOfThoseUpToTheStepSaved) {
  for (const std::int64_t step : {10, 20, 30, 40, 90}) save(step);
  save(50, {.keep = 3});
  EXPECT_THAT(store().steps(), ElementsAre(30, 40, 50, 90));
  save(60, {.keep = 1});
  EXPECT_THAT(store().steps(), ElementsAre(60, 90));
  save(100, {.keep = 1});
  EXPECT_THAT(store().steps(), ElementsAre(100));
  EXPECT_EQ(text_of([&] { store({.keep = 0}); }), "checkpoints to keep: 0; at least 1 stays");
}

// promise: trainer.h#of_this_run
TEST_F(Store, KnowsWhichRunWroteWhat) {
  const auto save_of = [&](std::int64_t step, const std::string& run) {
    SampleCheckpoint sample(step, static_cast<unsigned>(step));
    sample.content.run = run;
    store().save(sample.content);
  };
  save_of(10, "a");
  save_of(20, "b");
  save_of(30, "a");
  save_of(40, "c");
  EXPECT_EQ(store().open(20).manifest().run, "b");
  EXPECT_EQ(store().newest_of("a"), 30);
  EXPECT_EQ(store().newest_of("b"), 20);
  EXPECT_FALSE(store().newest_of("d"));
  EXPECT_FALSE(store().newest_good("d").checkpoint);
  write(path(30, "model.safetensors"), "");
  const NewestGood found = store().newest_good("a");
  EXPECT_EQ(found.checkpoint->manifest().step, 10);
  EXPECT_THAT(found.passed_over, ElementsAre(HasSubstr(path(30, "model.safetensors"))));
  EXPECT_EQ(found.damaged, 1);
  write(path(40, "manifest.json"), "");  // may be anybody's
  EXPECT_EQ(store().newest_good("d").damaged, 0);
  EXPECT_EQ(store().newest_good("a").damaged, 1);
  EXPECT_THAT(text_of<Corrupt>([&] { store().newest_of("a"); }),
              HasSubstr(path(40, "manifest.json")));
}

// findings-3: D4
TEST_F(Store, KnowsWhichRunHasSavedLast) {
  const auto save_of = [&](std::int64_t step, const std::string& run) {
    SampleCheckpoint sample(step, static_cast<unsigned>(step));
    sample.content.run = run;
    store().save(sample.content);
  };
  EXPECT_FALSE(store().newest_of_last_run());
  EXPECT_FALSE(store().newest_good_of_last_run().checkpoint);
  save_of(40, "a");
  save_of(10, "b");
  save_of(20, "b");
  EXPECT_EQ(store().newest_of_last_run(), 20);
  EXPECT_EQ(store().newest_good_of_last_run().checkpoint->manifest().step, 20);
  EXPECT_EQ(store().newest(), 40);
  write(path(20, "model.safetensors"), "");
  EXPECT_EQ(store().newest_of_last_run(), 20) << "what is damaged is not passed over in silence";
  EXPECT_EQ(store().newest_good_of_last_run().checkpoint->manifest().step, 10);
  write(path(10, "model.safetensors"), "");
  EXPECT_EQ(store().newest_good_of_last_run().checkpoint->manifest().step, 40);
  fs::remove_all(dir_ + "/step-00000010");
  fs::remove_all(dir_ + "/step-00000020");
  EXPECT_EQ(store().newest_of_last_run(), 40) << "of those that are there";
  save_of(30, "a");
  EXPECT_EQ(store().newest_of_last_run(), 40) << "of the same run the highest step";
  fs::remove(dir_ + "/.run");  // as in a folder of an older Tutti
  save_of(5, "");
  EXPECT_EQ(store().newest_of_last_run(), 5);
}

TEST_F(Store, LeavesForeignFilesAlone) {
  save(10);
  for (const char* name : {".step-00000010", ".step-00000010.mine", ".step-1.gone", ".hidden"})
    create_file(dir_ + "/" + name);
  save(20, {.keep = 1});
  for (const char* name : {".step-00000010", ".step-00000010.mine", ".step-1.gone", ".hidden"})
    EXPECT_TRUE(fs::exists(dir_ + "/" + name)) << name;
}

TEST_F(Store, FilesLeftByACrashAreCleaned) {
  save(10);
  create_file(dir_ + "/.step-00000020.part-1");
  fs::create_directories(dir_ + "/.step-00000020.part-2/deep");
  fs::create_directories(dir_ + "/.step-00000005.gone");
  fs::rename(path(10), dir_ + "/.step-00000010.old");
  EXPECT_THAT(store().steps(), ElementsAre(10)) << "complete, though out of its place";
  store().open(10);
  save(20);
  EXPECT_THAT(host_files()->names_in(dir_),
              ::testing::UnorderedElementsAre(".lock", ".run", "step-00000010", "step-00000020"));
}

// promise: trainer.h#save
TEST_F(Store, TwoRunsThatSaveIntoOneFolderAreToldInsteadOfDeletingEachOthersFiles) {
  save(10);
  {
    const auto other = host_files()->lock(dir_ + "/.lock");  // of another run, in the middle of it
    ASSERT_TRUE(other);
    EXPECT_THAT(text_of([&] { save(20); }),
                AllOf(HasSubstr("the checkpoint of step 20"), HasSubstr("another run saves there"),
                      HasSubstr(dir_ + "/.lock is locked")));
    EXPECT_THAT(store().steps(), ElementsAre(10));
    store().open(10);  // reading needs no lock
  }
  save(20);
  EXPECT_THAT(store().steps(), ElementsAre(10, 20));
}

// promise: error.h#Corrupt, clusters#on-one-host
TEST_F(Store, AnyFlippedByteIsRefused) {
  save(200);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string file = path(200, name);
    const std::string good = read_file(file);
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
      write(file, bad);
      EXPECT_THAT(text_of<Corrupt>([&] { store().open(200); }), HasSubstr(file)) << i;
    }
    write(file, good);
    store().open(200);
  }
}

// promise: error.h#Corrupt, errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST_F(Store, AnyCutOrLongerFileIsRefused) {
  save(200);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string file = path(200, name);
    const std::string good = read_file(file);
    for (std::size_t size = 0; size < good.size(); size += 7) {
      write(file, good.substr(0, size));
      EXPECT_THAT(text_of<Corrupt>([&] { store().open(200); }), HasSubstr(file)) << size;
    }
    write(file, good + "x");
    EXPECT_THAT(text_of<Corrupt>([&] { store().open(200); }), HasSubstr(file));
    fs::remove(file);
    EXPECT_EQ(text_of<Corrupt>([&] { store().open(200); }),
              "cannot open " + file + ": No such file or directory");
    fs::create_directory(file);
    EXPECT_EQ(text_of<IoError>([&] { store().open(200); }),
              "cannot open " + file + ": not a regular file");
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_EQ(text_of<IoError>([&] { store().open(200); }),
              "cannot open " + file + ": not a regular file");
    fs::remove(file);
    write(file, good);
  }
}

TEST_F(Store, SaysWhatIsWrong) {
  save(200);
  const std::string file = path(200, "model.safetensors");
  const std::string good = read_file(file);
  write(file, good + "!");
  EXPECT_EQ(text_of<Corrupt>([&] { store().open(200); }),
            file + " has " + std::to_string(good.size() + 1) + " bytes; the manifest names " +
                std::to_string(good.size()));
  std::string bad = good;
  bad.back() ^= 1;
  write(file, bad);
  EXPECT_THAT(text_of<Corrupt>([&] { store().open(200); }),
              HasSubstr(file + " was altered: its SHA-256"));
  write(file, good);
  fs::rename(path(200), path(300));
  EXPECT_EQ(text_of<Corrupt>([&] { store().open(300); }),
            path(300) + " holds a checkpoint of step 200, not of step 300");
}

// promise: trainer.h#fall_back
TEST_F(Store, FallsBackOnlyWhenAskedAndSaysWhy) {
  for (const std::int64_t step : {10, 20, 30}) save(step);
  fs::remove(path(30, "manifest.json"));
  write(path(20, "optimizer.safetensors"), "short");
  EXPECT_EQ(store().newest(), 30) << "what is damaged is not passed over in silence";
  NewestGood found = store().newest_good();
  ASSERT_TRUE(found.checkpoint);
  EXPECT_EQ(found.checkpoint->manifest().step, 10);
  EXPECT_THAT(found.passed_over,
              ElementsAre(HasSubstr(path(30, "manifest.json")),
                          HasSubstr(path(20, "optimizer.safetensors") + " has 5 bytes")));
  fs::remove_all(path(10));
  found = store().newest_good();
  EXPECT_FALSE(found.checkpoint);
  EXPECT_EQ(found.passed_over.size(), 2U);
}

TEST_F(Store, ContentThatCannotBeKeptIsRefusedBeforeAnyEffect) {
  const auto refusal = [&](const auto& spoil) {
    SampleCheckpoint sample(200, 1);
    spoil(sample.content);
    return text_of([&] { store().save(sample.content); });
  };
  using Content = CheckpointContent;
  EXPECT_EQ(refusal([](Content& c) { c.step = -1; }), "checkpoint of step -1");
  EXPECT_EQ(refusal([](Content& c) { c.files[1].name = c.files[0].name; }),
            "a checkpoint with two files \"model.safetensors\"");
  for (const char* name : {"", ".", "..", "a/b", "/a", ".a", "manifest.json", "\xff"})
    EXPECT_THAT(refusal([&](Content& c) { c.files[0].name = name; }),
                HasSubstr("is no name for a file of a checkpoint"));
  EXPECT_THAT(refusal([](Content& c) { c.facts["a"] = "\xff"; }), HasSubstr("not UTF-8"));
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    EXPECT_THAT(refusal([&](Content& c) {
                  c.state["loss_scale"] = {1, value};
                }),
                HasSubstr("a value that JSON cannot keep"));
  EXPECT_THAT(refusal([](Content& c) {
                c.files[0].tensors[0].shape = {3, 4};
              }),
              HasSubstr("model.safetensors: tensor \"a.weight\" of F32 [3, 4] was given 60 bytes"));
  EXPECT_FALSE(fs::exists(dir_));
  EXPECT_THAT(text_of([&] { CheckpointStore(host_files(), ""); }), HasSubstr("its name is empty"));
}

TEST_F(Store, FolderMayBeWrittenInAnyWay) {
  for (const std::string end : {"/a", "/b/", "/c/.", "/d//"}) {
    CheckpointStore store(host_files(), dir_ + end);
    store.save(SampleCheckpoint(1, 1).content);
    EXPECT_THAT(store.steps(), ElementsAre(1)) << end;
  }
  create_file(folder_.file("file"));
  EXPECT_THAT(
      text_of<IoError>([&] {
        CheckpointStore(host_files(), folder_.file("file")).save(SampleCheckpoint(1, 1).content);
      }),
      HasSubstr("Not a directory"));
}

TEST_F(Store, CheckpointWithoutFilesOrFacts) {
  store().save({.step = 1});
  EXPECT_EQ(store().open(1).manifest(), Manifest{.step = 1});
}

}  // namespace
}  // namespace tutti::test
