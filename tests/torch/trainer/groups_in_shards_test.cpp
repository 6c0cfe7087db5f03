// Groups, and memory of groups, that a shard of a Trainer would make alone.

#include "torch/training.h"

namespace tutti::test::groups_in_shards {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  const char* what;
  std::function<void(const Job&, const Group&)> make;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"the making of group \"two\"", [](const Job& job, const Group&) { Group(job, "two"); }},
      {"the making of group \"own\"",
       [](const Job& job, const Group&) { Group(job, {job.rank()}, "own"); }},
      {"split() of group \"world\"",
       [](const Job&, const Group& group) { static_cast<void>(group.split(0, "part")); }},
      {"allocate() of group \"world\"",
       [](const Job&, const Group& group) { static_cast<void>(group.allocate(64)); }},
      {"allocate_common() of group \"world\"",
       [](const Job&, const Group& group) { static_cast<void>(group.allocate_common(64)); }},
      {"barrier of group \"world\"",
       [](const Job&, const Group& group) {
         group.connect(std::vector<std::pair<int, int>>{{0, 1}});
       }},
  };
  return all;
}

TEST(ShardsOfATrainer, MakingAGroupOrItsMemoryInOneIsAnErrorThatSaysSo) {
  on_workers(2, [&](const Job& job) {
    const Group group(job);
    torch::nn::Linear net(3, 3);
    Trainer trainer(group, *net, Sgd{.lr = 0.1}, {.shards = 3, .audit_every = 0});
    for (const auto& each : cases()) {
      EXPECT_THAT(text_of([&] {
                    trainer.step([&](Shard& shard) {
                      each.make(job, group);
                      return shard.loss(net->forward(torch::ones({2, 3})).sum());
                    });
                  }),
                  AllOf(HasSubstr(std::string(each.what) + " in shard"),
                        HasSubstr("of Trainer \"model\""), HasSubstr("call it between steps")));
    }
    // Between steps, in the same order on all workers, each works.
    for (const auto& each : cases()) each.make(job, group);
    const auto result = trainer.step([&](Shard& shard) {
      return shard.loss(net->forward(torch::ones({2, 3})).sum());
    });
    EXPECT_TRUE(result.applied);
  });
}

}  // namespace
}  // namespace tutti::test::groups_in_shards
