#include "tutti/shard_index.h"

#include "torch/split/whole.h"

namespace tutti::test::shard_index_cases {
namespace {

using ::testing::HasSubstr;

// promise: shard_index.h#shard_index
TEST(ShardIndex, EachLabelHasOneRowOverAllShards) {
  for (const std::int64_t classes : {1, 2, 7, 10}) {
    for (const std::int64_t shards : {1, 2, 3, 5, 8}) {
      auto labels = torch::arange(classes).repeat({3}).view({3, classes});
      labels[1][0] = -1;
      auto owners = torch::zeros_like(labels);
      auto back = torch::zeros_like(labels);
      for (std::int64_t shard = 0; shard < shards; ++shard) {
        const auto rows = shard_index(labels, classes, shards, shard);
        const auto [first, last] = share_of(classes, shard, shards);
        const auto is_here = rows != -1;
        EXPECT_TRUE((rows.masked_select(is_here) < last - first).all().item<bool>());
        owners += is_here;
        back += torch::where(is_here, rows + first, torch::zeros_like(rows));
      }
      EXPECT_EQ(owners[1][0].item<std::int64_t>(), 0) << "an ignored one has none";
      owners[1][0] = 1;
      back[1][0] = -1;
      EXPECT_TRUE((owners == 1).all().item<bool>()) << classes << " over " << shards;
      EXPECT_TRUE(torch::equal(back, labels)) << classes << " over " << shards;
    }
  }
}

// promise: shard_index.h#shard_index
TEST(ShardIndex, KeepsTypeAndShapeAndTakesAnotherIgnore) {
  const auto labels = torch::tensor({{0, 9}, {-7, 4}}, torch::kInt32);
  const auto rows = shard_index(labels, 10, 2, 1, -7);
  EXPECT_TRUE(torch::equal(rows, torch::tensor({{-7, 4}, {-7, -7}}, torch::kInt32)));
  EXPECT_EQ(shard_index(torch::empty({0}, torch::kInt64), 3, 2, 0).numel(), 0);
}

// promise: shard_index.h#one_hot
TEST(ShardIndex, OneHotRowsAreZeroWhereIgnored) {
  const auto rows = tutti::one_hot(torch::tensor({{2, -1}, {0, 1}}, torch::kInt64), 3);
  const auto wanted = torch::tensor({0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0}, torch::kInt64);
  EXPECT_TRUE(torch::equal(rows, wanted.view({2, 2, 3})));
  EXPECT_EQ(tutti::one_hot(torch::tensor({0, 2}, torch::kInt64), 3, 0).sum().item<std::int64_t>(),
            1);
  const auto labels = drawn_labels(3, 7, {4, 5});
  EXPECT_TRUE(torch::equal(tutti::one_hot(labels, 7), torch::one_hot(labels, 7)));
}

// promise: shard_index.h#shard_index
TEST(ShardIndex, WhatIsNoClassIsNamedWithItsPosition) {
  const auto refused = [](const std::function<void()>& body) {
    return text_of<InvalidArgument>(body);
  };
  const auto labels = torch::tensor({{0, -1}, {10, 3}}, torch::kInt64);
  EXPECT_EQ(refused([&] { shard_index(labels, 10, 2, 0); }),
            "shard_index: label 10 at position 2 is none of 10 classes");
  EXPECT_EQ(refused([&] { shard_index(labels, 11, 2, 0, -2); }),
            "shard_index: label -1 at position 1 is none of 11 classes");
  EXPECT_EQ(refused([&] { tutti::one_hot(labels, 10); }),
            "one_hot: label 10 at position 2 is none of 10 classes");
  EXPECT_THAT(refused([&] { shard_index(labels, 0, 2, 0); }),
              HasSubstr("shard_index: 0 classes: at least 1 is needed"));
  // findings-3: C8
  EXPECT_THAT(refused([&] { tutti::one_hot(labels, 0); }),
              HasSubstr("one_hot: 0 classes: at least 1 is needed. Their number is not taken from "
                        "the labels"));
  EXPECT_EQ(refused([&] { shard_index(labels, 11, 0, 0); }), "shard_index: shard 0 of 0");
  EXPECT_EQ(refused([&] { shard_index(labels, 11, 2, 2); }), "shard_index: shard 2 of 2");
  EXPECT_EQ(refused([&] { shard_index(labels, 11, 2, -1); }), "shard_index: shard -1 of 2");
  EXPECT_EQ(refused([&] { shard_index(labels.abs(), 11, 2, 0, 5); }),
            "shard_index: ignore 5 is one of 11 classes");
  EXPECT_THAT(refused([&] { tutti::one_hot(torch::ones({2}), 3); }),
              HasSubstr("labels must be integers"));
  EXPECT_THAT(refused([&] { shard_index({}, 3, 1, 0); }), HasSubstr("labels must be integers"));
}

}  // namespace
}  // namespace tutti::test::shard_index_cases
