#include "job/rendezvous/broker.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/system.h"
#include "job/ranks_and_deadlines.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "job/wire/rank_set.h"
#include "support/process_ranks.h"
#include "support/text_of.h"
#include "tutti/error.h"
#include "tutti/job.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// A broker with all its ranks in this process, one rendezvous each.
struct Local {
  explicit Local(int size) : broker(size) {
    std::vector<FileDescriptor> ends;
    for (int rank = 0; rank < size; ++rank) {
      ends.emplace_back(::fcntl(broker.worker_end(rank), F_DUPFD_CLOEXEC, 3));
      broker.close_worker_end(rank);
    }
    for (int rank = 0; rank < size; ++rank)
      ranks.push_back(
          connect_to_broker(std::move(ends[static_cast<std::size_t>(rank)]), rank, size));
  }
  /// Runs `body` for every rank in a thread of its own.
  void run(const std::function<void(int, Rendezvous&)>& body) {
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      threads.emplace_back([&, r] { body(static_cast<int>(r), *ranks[r]); });
    for (auto& thread : threads) thread.join();
  }
  Broker broker;
  std::vector<std::unique_ptr<Rendezvous>> ranks;
};

TEST(Broker, sixty_four_ranks_gather_bytes_and_descriptors) {
  // 64 parcels with 2 descriptors to each of 64: more on their way than a process may have open.
  const ProcessOutcome outcome = run_processes(64, [](int rank, FileDescriptor socket) {
    const auto rendezvous = connect_to_broker(std::move(socket), rank, 64);
    const auto system = host_system();
    Parcel mine{"rank " + std::to_string(rank), {}};
    for (int i = 0; i < 2; ++i) {
      mine.descriptors.push_back(system->create_memory("test", 4096));
      system->map(mine.descriptors.back(), 4096).get()[0] = static_cast<std::byte>(2 * rank + i);
    }
    const auto parcels =
        rendezvous->all_gather("tag", all(64), std::move(mine), within(seconds(50)));
    ASSERT_EQ(parcels.size(), 64U);
    for (std::size_t r = 0; r < 64; ++r) {
      EXPECT_EQ(parcels[r].bytes, "rank " + std::to_string(r));
      ASSERT_EQ(parcels[r].descriptors.size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(system->map(parcels[r].descriptors[i], 4096).get()[0],
                  static_cast<std::byte>(2 * r + i));
        EXPECT_EQ(::fcntl(parcels[r].descriptors[i].get(), F_GETFD), FD_CLOEXEC);
      }
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

TEST(Broker, descriptors_refer_to_the_same_memory) {
  Local local(2);
  const auto system = host_system();
  std::vector<std::shared_ptr<std::byte>> seen(2);
  local.run([&](int rank, Rendezvous& rendezvous) {
    Parcel mine;
    if (rank == 0) mine.descriptors.push_back(system->create_memory("test", 8192));
    const auto parcels =
        rendezvous.all_gather("memory", all(2), std::move(mine), within(seconds(30)));
    seen[static_cast<std::size_t>(rank)] = system->map(parcels[0].descriptors.at(0), 8192);
    EXPECT_TRUE(parcels[1].descriptors.empty());
  });
  EXPECT_NE(seen[0].get(), seen[1].get());
  seen[0].get()[8191] = std::byte{42};
  EXPECT_EQ(seen[1].get()[8191], std::byte{42});
}

TEST(Broker, large_parcels_arrive_whole) {
  Local local(3);
  const auto content = [](int rank) {
    std::string bytes(static_cast<std::size_t>(5'000'001 + rank), '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>((i * 31 + static_cast<std::size_t>(rank) * 7) % 251);
    return bytes;
  };
  local.run([&](int rank, Rendezvous& rendezvous) {
    const auto parcels =
        rendezvous.all_gather("large", all(3), {content(rank), {}}, within(seconds(50)));
    for (int r = 0; r < 3; ++r)
      EXPECT_TRUE(parcels[static_cast<std::size_t>(r)].bytes == content(r)) << r;
  });
}

TEST(Broker, groups_of_ranks_gather_at_the_same_time_and_a_tag_again) {
  Local local(4);
  local.run([&](int rank, Rendezvous& rendezvous) {
    const std::vector<int> pair = rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    for (int round = 0; round < 20; ++round) {
      const auto parcels = rendezvous.all_gather("pair", pair, {std::to_string(rank + round), {}},
                                                 within(seconds(30)));
      ASSERT_EQ(parcels.size(), 2U);
      EXPECT_EQ(parcels[1].bytes, std::to_string(pair[1] + round));
    }
  });
}

TEST(Broker, two_threads_of_a_rank_gather_in_any_order) {
  Local local(2);
  local.run([&](int rank, Rendezvous& rendezvous) {
    const auto gather = [&](const std::string& tag) {
      const auto parcels = rendezvous.all_gather(tag, all(2), {tag, {}}, within(seconds(30)));
      EXPECT_EQ(parcels[static_cast<std::size_t>(1 - rank)].bytes, tag);
    };
    std::thread other([&] { gather(rank == 0 ? "a" : "b"); });
    gather(rank == 0 ? "b" : "a");
    other.join();
  });
}

TEST(Broker, time_out_names_who_has_not_come_and_spoils_no_later_tag) {
  Local local(3);
  local.run([&](int rank, Rendezvous& rendezvous) {
    if (rank != 2) {
      const auto time = rank == 0 ? milliseconds(200) : milliseconds(30'000);
      EXPECT_THAT(
          text_of<Timeout>([&] { rendezvous.all_gather("first", all(3), {}, within(time)); }),
          HasSubstr("2 had not come to first when rank 0 gave up"));
    }
    EXPECT_EQ(rendezvous.all_gather("second", all(3), {}, within(seconds(30))).size(), 3U);
    if (rank == 2) {
      EXPECT_THAT(text_of<Timeout>(
                      [&] { rendezvous.all_gather("first", all(3), {}, within(seconds(30))); }),
                  HasSubstr("2 had not come"));
    }
    // Once rank 2 has been told, the tag is as good as new.
    EXPECT_EQ(rendezvous.all_gather("third", all(3), {}, within(seconds(30))).size(), 3U);
    EXPECT_EQ(rendezvous.all_gather("first", all(3), {}, within(seconds(30))).size(), 3U);
  });
}

TEST(Broker, rank_that_hung_up_is_lost_to_those_that_wait_for_it) {
  Local local(3);
  std::thread quitter([&] { local.ranks[1].reset(); });
  const auto gather = [&](int rank, const std::vector<int>& ranks) {
    return text_of<PeerLost>([&] {
      local.ranks[static_cast<std::size_t>(rank)]->all_gather("tag", ranks, {},
                                                              within(seconds(30)));
    });
  };
  EXPECT_EQ(gather(0, {0, 1}), "rank 1 ended before coming to tag");
  EXPECT_EQ(gather(2, {0, 1, 2}), "rank 1 ended before coming to tag");
  quitter.join();
}

TEST(Broker, rank_that_is_said_to_have_ended_is_lost_although_its_socket_is_open) {
  Local local(3);
  const auto gather = [&](int rank, const char* tag, const std::vector<int>& ranks) {
    return text_of<PeerLost>([&] {
      local.ranks[static_cast<std::size_t>(rank)]->all_gather(tag, ranks, {}, within(seconds(30)));
    });
  };
  std::thread waits([&] { EXPECT_EQ(gather(2, "a", {1, 2}), "rank 1 ended before coming to a"); });
  local.ranks[0]->report_end(1);
  waits.join();
  EXPECT_EQ(gather(0, "b", {0, 1}), "rank 1 ended before coming to b");
  // Whatever it says afterwards, blames included, is heard.
  local.ranks[1]->blame(2, "late");
  local.ranks[1].reset();
  EXPECT_EQ(local.broker.blames().size(), 1U);
}

TEST(Broker, blames_are_there_once_the_worker_has_ended) {
  Local local(2);
  local.ranks[1]->blame(0, "rank 0 ended");
  local.ranks[1].reset();
  const auto blames = local.broker.blames();
  ASSERT_EQ(blames.size(), 1U);
  EXPECT_EQ(blames[0].rank, 1);
  EXPECT_EQ(blames[0].culprit, 0);
  EXPECT_EQ(blames[0].text, "rank 0 ended");
}

TEST(Broker, knows_whether_a_worker_began_to_join_even_one_that_has_ended) {
  Local local(2);
  local.ranks[1]->blame(0, "no parcel");
  EXPECT_FALSE(local.broker.any_joining());
  EXPECT_THROW(local.ranks[0]->all_gather("join", all(2), {}, within(milliseconds(1))), Timeout);
  local.ranks[0].reset();
  EXPECT_TRUE(local.broker.any_joining());
}

TEST(Broker, worker_that_speaks_nonsense_is_treated_as_ended) {
  Broker broker(2);
  const FileDescriptor babbler(::fcntl(broker.worker_end(0), F_DUPFD_CLOEXEC, 3));
  FileDescriptor other(::fcntl(broker.worker_end(1), F_DUPFD_CLOEXEC, 3));
  broker.close_worker_end(0);
  broker.close_worker_end(1);
  const auto rendezvous = connect_to_broker(std::move(other), 1, 2);
  const std::string noise(100, 'x');
  ASSERT_EQ(::send(babbler.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 100);
  EXPECT_EQ(
      text_of<PeerLost>([&] { rendezvous->all_gather("tag", all(2), {}, within(seconds(30))); }),
      "rank 0 ended before coming to tag");
}

TEST(Broker, parcels_beyond_all_bounds_are_refused) {
  Local local(1);
  EXPECT_THROW(local.ranks[0]->all_gather(std::string(5000, 't'), {0}, {}, within(seconds(1))),
               InvalidArgument);
  EXPECT_THROW(Broker(0), InvalidArgument);
  EXPECT_EQ(text_of([] { Broker(65); }), "65 workers on one host: must be 1 to 64");
  EXPECT_THROW(connect_to_broker(FileDescriptor(::open("/dev/null", O_RDONLY)), 0, 1),
               InvalidArgument);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
  const FileDescriptor peer(ends[1]);
  EXPECT_THROW(connect_to_broker(FileDescriptor(ends[0]), 0, 1), InvalidArgument);
}

TEST(Broker, worker_ends_when_its_launcher_is_killed) {
  int report[2];
  ASSERT_EQ(::pipe2(report, O_CLOEXEC), 0);
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    Broker broker(1);
    const pid_t worker = ::fork();
    if (worker == 0) {
      ::alarm(60);  // nothing may be left behind, should it fail to notice
      ::dup2(report[1], STDERR_FILENO);
      ::close(report[1]);
      const auto rendezvous = connect_to_broker(broker.take_worker_end(0), 0, 1);
      rendezvous->all_gather("ready", {0}, {}, within(seconds(30)));
      static_cast<void>(!::write(STDERR_FILENO, "ready\n", 6));
      for (volatile bool computing = true; computing;) {
      }
    }
    broker.close_worker_end(0);
    ::pause();
    ::_exit(0);
  }
  ::close(report[1]);
  std::string said;
  char buffer[256];
  // The pipe ends when the worker has: nothing else holds its other end.
  for (ssize_t n = 0; (n = ::read(report[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(n));
    if (said == "ready\n") ::kill(launcher, SIGKILL);
  }
  ::close(report[0]);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_EQ(said, "ready\ntutti [rank 0] error: the launcher is gone\n");
}

}  // namespace
}  // namespace tutti::test
