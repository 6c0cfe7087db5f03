// What hosts tell each other while they join, as bytes: it arrives, and what is cut, longer or
// makes no sense is nothing.

#include "job/hosts/host_messages.h"

#include <gmock/gmock.h>

#include "job/wire/rank_set.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;

HostIntroduction introduction() {
  return {.run = "12ab",
          .token = "t",
          .name = "a",
          .size = 9,
          .ranks = {0, 3, 8},
          .attempt = 2,
          .facts = "frame 2"};
}

TEST(HostMessages, ArriveAsTheyWere) {
  const auto said = read_introduction(bytes_of(introduction()));
  ASSERT_TRUE(said);
  EXPECT_EQ(said->run, "12ab");
  EXPECT_EQ(said->token, "");
  EXPECT_EQ(said->name, "a");
  EXPECT_EQ(said->size, 9);
  EXPECT_THAT(said->ranks, ElementsAre(0, 3, 8));
  EXPECT_EQ(said->attempt, 2);
  EXPECT_EQ(said->facts, "frame 2");
  const auto list = read_host_list(bytes_of(HostList{"12ab", {{"a", {0, 2}}, {"b", {1}}}}));
  ASSERT_TRUE(list);
  EXPECT_EQ(list->run, "12ab");
  ASSERT_EQ(list->hosts.size(), 2U);
  EXPECT_EQ(host_text(list->hosts[0].name, list->hosts[0].ranks), "a (ranks 0 2)");
  EXPECT_EQ(host_text(list->hosts[1].name, list->hosts[1].ranks), "b (rank 1)");
  const auto verdict = read_verdict(bytes_of(HostVerdict{HostVerdict::Kind::lost, 5, "gone"}));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->kind, HostVerdict::Kind::lost);
  EXPECT_EQ(verdict->rank, 5);
  EXPECT_EQ(verdict->text, "gone");
}

TEST(HostMessages, CutOrLongerTheyAreNothing) {
  const auto said = bytes_of(introduction());
  const auto list = bytes_of(HostList{"12ab", {{"a", {0, 2}}, {"b", {1}}}});
  const auto verdict = bytes_of(HostVerdict{HostVerdict::Kind::lost, 5, "gone"});
  for (std::size_t bytes = 0; bytes < said.size(); ++bytes)
    EXPECT_FALSE(read_introduction(said.substr(0, bytes)));
  for (std::size_t bytes = 0; bytes < list.size(); ++bytes)
    EXPECT_FALSE(read_host_list(list.substr(0, bytes)));
  for (std::size_t bytes = 0; bytes < verdict.size(); ++bytes)
    EXPECT_FALSE(read_verdict(verdict.substr(0, bytes)));
  EXPECT_FALSE(read_introduction(said + "x"));
  EXPECT_FALSE(read_host_list(list + "x"));
  EXPECT_FALSE(read_verdict(verdict + "x"));
}

TEST(HostMessages, OfSizesThatCannotBeTheyAreNothing) {
  const auto with = [](auto change) {
    auto said = introduction();
    change(said);
    return read_introduction(bytes_of(said)).has_value();
  };
  EXPECT_TRUE(with([](auto&) {}));
  EXPECT_FALSE(with([](auto& said) { said.ranks = {}; }));
  EXPECT_FALSE(with([](auto& said) { said.ranks = {3, 3}; }));
  EXPECT_FALSE(with([](auto& said) { said.ranks = {4, 3}; }));
  EXPECT_FALSE(with([](auto& said) { said.ranks = {9}; }));
  EXPECT_FALSE(with([](auto& said) { said.ranks = {-1}; }));
  EXPECT_FALSE(with([](auto& said) { said.size = kMaxWorkers + 1; }));
  EXPECT_FALSE(with([](auto& said) { said.name = std::string(256, 'a'); }));
  EXPECT_FALSE(with([](auto& said) { said.run = std::string(256, 'a'); }));
  EXPECT_FALSE(with([](auto& said) { said.facts = std::string(4097, 'a'); }));
  EXPECT_TRUE(with([](auto& said) {
    said.size = kMaxWorkers;
    said.ranks = (RankSet::below(kMaxWorkers) - RankSet::below(kMaxWorkers - 64)).ranks();
    said.facts = std::string(4096, 'a');
  }));
  EXPECT_FALSE(with([](auto& said) {
    said.size = kMaxWorkers;
    said.ranks = RankSet::below(65).ranks();
  }));
  EXPECT_FALSE(read_introduction(std::string(64, '\xff')));
  EXPECT_FALSE(read_host_list(std::string(64, '\xff')));
  EXPECT_FALSE(read_verdict(std::string(64, '\xff')));
}

TEST(HostMessages, AVerdictIsTheErrorThatItStandsFor) {
  using Kind = HostVerdict::Kind;
  EXPECT_EQ(text_of<Mismatch>([] { throw_verdict({Kind::mismatch, 0, "differs"}); }), "differs");
  EXPECT_EQ(text_of<Timeout>([] { throw_verdict({Kind::timeout, 0, "late"}); }), "late");
  EXPECT_EQ(text_of<PeerLost>([] { throw_verdict({Kind::lost, 4, "gone"}); }), "gone");
}

}  // namespace
}  // namespace tutti::test
