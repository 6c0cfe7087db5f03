#include "job/rendezvous/gather_table.h"

#include <gmock/gmock.h>

#include "tutti/error.h"

namespace tutti {
namespace {

using Kind = GatherOutcome::Kind;

Parcel parcel(const std::string& bytes) { return {bytes, {}}; }

TEST(GatherTable, is_complete_with_the_last_and_in_rank_order) {
  GatherTable table;
  EXPECT_TRUE(table.give(2, 7, "tag", {0, 1, 2}, parcel("two")).empty());
  EXPECT_TRUE(table.give(0, 8, "tag", {0, 1, 2}, parcel("zero")).empty());
  const auto told = table.give(1, 9, "tag", {0, 1, 2}, parcel("one"));
  ASSERT_EQ(told.size(), 3U);
  for (const GatherOutcome& outcome : told) {
    EXPECT_EQ(outcome.kind, Kind::complete);
    ASSERT_EQ(outcome.parcels->size(), 3U);
    EXPECT_EQ((*outcome.parcels)[0].bytes, "zero");
    EXPECT_EQ((*outcome.parcels)[1].bytes, "one");
    EXPECT_EQ((*outcome.parcels)[2].bytes, "two");
  }
  EXPECT_EQ(told[0].request, 8U);
  EXPECT_EQ(told[1].request, 9U);
  EXPECT_EQ(told[2].request, 7U);
  EXPECT_EQ(table.open(), 0U);
}

TEST(GatherTable, tags_and_sets_of_ranks_are_apart) {
  GatherTable table;
  EXPECT_TRUE(table.give(0, 1, "a", {0, 1}, parcel("")).empty());
  EXPECT_TRUE(table.give(1, 1, "b", {0, 1}, parcel("")).empty());
  EXPECT_TRUE(table.give(1, 2, "a", {1, 2}, parcel("")).empty());
  EXPECT_EQ(table.open(), 3U);
  EXPECT_EQ(table.give(1, 3, "a", {0, 1}, parcel("")).size(), 2U);
}

TEST(GatherTable, one_who_gives_up_ends_it_for_all_with_one_text) {
  GatherTable table;
  table.give(0, 1, "tag", {0, 1, 2, 3}, parcel(""));
  table.give(1, 1, "tag", {0, 1, 2, 3}, parcel(""));
  const auto told = table.give_up(1, 1);
  ASSERT_EQ(told.size(), 2U);
  const std::string text =
      "ranks 2 3 had not come to tag when rank 1 gave up waiting (ranks 0 1 were there)";
  for (const GatherOutcome& outcome : told) {
    EXPECT_EQ(outcome.kind, Kind::timed_out);
    EXPECT_EQ(outcome.text, text);
    EXPECT_THROW(throw_failure(outcome), Timeout);
  }
  const auto late = table.give(3, 5, "tag", {0, 1, 2, 3}, parcel(""));
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].rank, 3);
  EXPECT_EQ(late[0].text, text);
  EXPECT_EQ(table.give(2, 6, "tag", {0, 1, 2, 3}, parcel("")).size(), 1U);
  EXPECT_EQ(table.open(), 0U) << "all have been told: the tag is free";
  EXPECT_TRUE(table.give(0, 2, "tag", {0, 1, 2, 3}, parcel("")).empty());
}

TEST(GatherTable, giving_up_after_the_answer_changes_nothing) {
  GatherTable table;
  table.give(0, 1, "tag", {0, 1}, parcel(""));
  table.give(1, 1, "tag", {0, 1}, parcel(""));
  EXPECT_TRUE(table.give_up(0, 1).empty());
  EXPECT_EQ(table.open(), 0U);
}

TEST(GatherTable, end_of_a_rank_fails_what_it_has_not_given_to) {
  GatherTable table;
  table.give(0, 1, "tag", {0, 1, 2}, parcel(""));
  table.give(1, 1, "other", {0, 1}, parcel(""));
  const auto told = table.end(2);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].kind, Kind::lost);
  EXPECT_EQ(told[0].culprit, 2);
  EXPECT_EQ(told[0].text, "rank 2 ended before coming to tag");
  EXPECT_THROW(throw_failure(told[0]), PeerLost);
  EXPECT_EQ(table.give(1, 2, "tag", {0, 1, 2}, parcel("")).size(), 1U);
  EXPECT_EQ(table.give(0, 2, "other", {0, 1}, parcel("")).size(), 2U)
      << "it goes on without rank 2";
  const auto later = table.give(0, 3, "later", {0, 2}, parcel(""));
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].culprit, 2);
  EXPECT_EQ(table.open(), 0U);
}

TEST(GatherTable, without_the_hub_nothing_is_gathered_among_those_that_are_left_either) {
  GatherTable table;
  table.give(2, 1, "waits", {2, 3}, parcel(""));
  table.give(2, 2, "complete", {2, 3}, parcel("two"));
  EXPECT_EQ(table.give(3, 1, "complete", {2, 3}, parcel("three")).size(), 2U);
  const std::string reason =
      "rank 0 ended or cannot be reached, through which this host reaches the others, before all "
      "had come to ";
  auto told = table.cut_off();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].rank, 2);
  EXPECT_EQ(told[0].culprit, 0);
  EXPECT_EQ(told[0].text, reason + "waits");
  EXPECT_TRUE(table.cut_off().empty());
  for (const auto& [rank, tag] : {std::pair{3, "waits"}, {2, "later"}, {3, "later"}}) {
    told = table.give(rank, 9, tag, {2, 3}, parcel(""));
    ASSERT_EQ(told.size(), 1U) << tag;
    EXPECT_EQ(told[0].rank, rank);
    EXPECT_EQ(told[0].text, reason + tag);
  }
  EXPECT_EQ(table.open(), 0U);
}

TEST(GatherTable, parcel_of_a_rank_that_ended_afterwards_counts) {
  GatherTable table;
  table.give(0, 1, "tag", {0, 1}, parcel("last words"));
  EXPECT_TRUE(table.end(0).empty());
  const auto told = table.give(1, 1, "tag", {0, 1}, parcel(""));
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].rank, 1);
  EXPECT_EQ((*told[0].parcels)[0].bytes, "last words");
  EXPECT_EQ(table.open(), 0U);
}

}  // namespace
}  // namespace tutti
