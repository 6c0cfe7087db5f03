#include "job/wire/board.h"

#include <gmock/gmock.h>

#include <thread>

namespace tutti {
namespace {

TEST(SharedText, keeps_what_fits_and_cuts_the_rest) {
  SharedText<64> text;
  EXPECT_EQ(read(text), "");
  for (const std::size_t length : {0, 1, 7, 8, 9, 63, 64, 65, 200}) {
    const std::string written(length, 'x');
    write(text, written);
    EXPECT_EQ(read(text), written.substr(0, 64)) << length;
  }
  write(text, "shorter");
  EXPECT_EQ(read(text), "shorter");
}

TEST(SharedText, readers_never_see_two_texts_mixed) {
  SharedText<192> text;
  const std::jthread writer([&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i)
      write(text, std::string(192, static_cast<char>('a' + i % 26)));
  });
  int seen = 0;
  char last = 0;
  while (seen < 50) {
    const std::string now = read(text);
    if (now.empty()) continue;  // the writer was suspended within a write
    ASSERT_EQ(now, std::string(192, now[0]));
    if (now[0] != last) ++seen;
    last = now[0];
  }
}

TEST(SharedText, reader_gives_up_on_a_writer_that_died_within_a_write) {
  SharedText<64> text;
  write(text, "before");
  text.version.fetch_add(1);
  EXPECT_EQ(read(text), "");
  write(text, "after");  // the next writer repairs it
  EXPECT_EQ(read(text), "after");
}

TEST(WaitNotice, is_read_as_published) {
  WaitNotice notice;
  EXPECT_FALSE(read(notice).in_wait());
  publish(
      notice,
      {.state = NoticeView::waiting, .since = 5, .evaluated = 7, .missing = {1, 2, 63, 64, 1023}});
  const NoticeView view = read(notice);
  EXPECT_TRUE(view.in_wait());
  EXPECT_EQ(view.since, 5);
  EXPECT_EQ(view.evaluated, 7);
  EXPECT_EQ(view.missing, (RankSet{1, 2, 63, 64, 1023}));
  publish(notice, {});
  EXPECT_FALSE(read(notice).in_wait());
}

/// In the first and in the last word of a set.
RankSet ranks_of(std::int64_t number) {
  return {static_cast<int>(number % 64), static_cast<int>(960 + number % 64)};
}

TEST(WaitNotice, readers_never_see_two_notices_mixed) {
  WaitNotice notice;
  const std::jthread writer([&](const std::stop_token& stop) {
    for (std::int64_t i = 1; !stop.stop_requested(); ++i)
      publish(notice,
              {.state = NoticeView::waiting, .since = i, .evaluated = i, .missing = ranks_of(i)});
  });
  for (int seen = 0; seen < 1000;) {
    const NoticeView view = read(notice);
    if (!view.in_wait()) continue;
    ASSERT_EQ(view.since, view.evaluated);
    ASSERT_EQ(view.missing, ranks_of(view.since));
    ++seen;
  }
}

// promise: group#waiting-and-what-started-means
TEST(Announce, costs_no_event_unless_somebody_sleeps) {
  Board board;
  announce(board);
  EXPECT_EQ(board.event.load(), 0U);
  board.sleepers = 1;
  announce(board);
  EXPECT_EQ(board.event.load(), 1U);
}

}  // namespace
}  // namespace tutti
