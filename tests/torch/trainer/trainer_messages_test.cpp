// What the compiler says where a Trainer's closure answers for its shard with anything else, and
// where a holder is given for a module.

#include <gmock/gmock.h>

#include <string>

#include "torch/compiler_messages.h"

namespace tutti::test::trainer_messages {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string messages(const std::string& closure) {
  return messages_about("trainer.h", "tutti::Trainer* trainer = nullptr; trainer->step(" + closure +
                                         "); static_cast<void>(group);");
}

TEST(TrainerMessages, AreNoneWhereAllIsWell) {
  for (const char* const right :
       {"[&](tutti::Shard& shard) { return shard.nothing(); }",
        "[&](tutti::Shard&) { return tutti::ShardAnswer(); }", "tutti::Trainer::Compute()"}) {
    EXPECT_THAT(messages(right), IsEmpty()) << right;
  }
}

TEST(TrainerMessages, NameWhatAClosureReturns) {
  for (const char* const wrong : {"[&](tutti::Shard&) { return x; }", "[&](tutti::Shard&) {}",
                                  "[&](tutti::Shard&) { return 1.0; }"}) {
    EXPECT_THAT(messages(wrong), HasSubstr("return shard.loss(loss, weight)")) << wrong;
  }
}

TEST(DataParallelMessages, NameTheModuleOfAHolder) {
  const std::string holder =
      "tutti::Job* job = nullptr; torch::nn::ModuleHolder<int> model; torch::nn::Module module; ";
  EXPECT_THAT(
      messages_about("data_parallel.h", holder + "tutti::DataParallel parallel(*job, module);"),
      IsEmpty());
  EXPECT_THAT(
      messages_about("data_parallel.h", holder + "tutti::DataParallel parallel(*job, model);"),
      HasSubstr("pass_the_module_itself"));
}

}  // namespace
}  // namespace tutti::test::trainer_messages
