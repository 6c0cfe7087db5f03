// The rendezvous that rank 0 serves: what it passes on, and what can go wrong while workers
// connect.

#include "job/rendezvous/host_rendezvous.h"
#include "job/ranks_and_deadlines.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>
#include <thread>

#include <fmt/format.h>

#include "base/run_identity.h"
#include "base/system.h"
#include "job/wire/rank_set.h"
#include "support/process_ranks.h"
#include "support/text_of.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::shared_ptr<Rendezvous> join(const std::string& name, int rank, int size,
                                 milliseconds time = seconds(30)) {
  return join_host({.name = name, .launcher = "mpirun", .rank = rank, .size = size}, within(time))
      .rendezvous;
}

/// A socket connected to the name, on which nothing was said; waits until it is served.
FileDescriptor stranger(const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  const auto end = within(seconds(20));
  while (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
    if (Clock::now() > end.at) throw std::runtime_error("nobody listens");
    ::usleep(1000);
  }
  return socket;
}

// promise: clusters#what-differs-from-tutti-run
TEST(HostRendezvous, PassesBytesAndDescriptorsInWhateverOrderWorkersCome) {
  for (const int size : {2, 3, 8}) {
    const auto name = draw_run_identity();
    const ProcessOutcome outcome = run_processes(size, [&](int rank, FileDescriptor) {
      if (rank == 0) ::usleep(50'000);
      const auto rendezvous = join(name, rank, size);
      const auto system = host_system();
      Parcel mine{"rank " + std::to_string(rank), {}};
      mine.descriptors.push_back(system->create_memory("test", 4096));
      system->map(mine.descriptors[0], 4096).get()[0] = static_cast<std::byte>(rank);
      const auto parcels =
          rendezvous->all_gather("tag", all(size), std::move(mine), within(seconds(50)));
      ASSERT_EQ(static_cast<int>(parcels.size()), size);
      for (int r = 0; r < size; ++r) {
        const auto& parcel = parcels[static_cast<std::size_t>(r)];
        EXPECT_EQ(parcel.bytes, "rank " + std::to_string(r));
        EXPECT_EQ(system->map(parcel.descriptors.at(0), 4096).get()[0], static_cast<std::byte>(r));
      }
    });
    EXPECT_TRUE(outcome.all_good()) << outcome.describe();
  }
}

TEST(HostRendezvous, ALargeAnswerOutlivesTheRankThatServesIt) {
  const auto name = draw_run_identity();
  const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor) {
    const auto rendezvous = join(name, rank, 3);
    const auto parcels = rendezvous->all_gather(
        "tag", all(3), {std::string(4 << 20, static_cast<char>('a' + rank)), {}},
        within(seconds(50)));
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(parcels[static_cast<std::size_t>(r)].bytes,
                std::string(4 << 20, static_cast<char>('a' + r)));
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: clusters#what-can-go-wrong
TEST(HostRendezvous, WithoutRankZeroTheOthersTimeOut) {
  const auto name = draw_run_identity();
  EXPECT_THAT(text_of<Timeout>([&] { join(name, 1, 2, milliseconds(100)); }),
              AllOf(StartsWith("rank 1 of the 2 workers that mpirun has started on this host could "
                               "not join the others within 0."),
                    HasSubstr("rank 0 has not come")));
}

// promise: clusters#how-workers-find-one-another, clusters#what-can-go-wrong
TEST(HostRendezvous, ASecondProcessOfTheSameRankWaitsForTheFirstAndThenTimesOut) {
  const auto name = draw_run_identity();
  const auto first = join(name, 0, 2);
  const auto other = join(name, 1, 2);
  EXPECT_THAT(text_of<Timeout>([&] { join(name, 1, 2, milliseconds(100)); }),
              HasSubstr("another process has joined as rank 1"));
  EXPECT_THAT(text_of<Timeout>([&] { join(name, 0, 2, milliseconds(100)); }),
              HasSubstr("another process serves them"));
}

/// `mpirun -n 2 sh -c './first; ./second'`
// promise: clusters#how-workers-find-one-another
TEST(HostRendezvous, TheNextProgramOfALauncherJoinsWhenTheOneBeforeHasEndedEverywhere) {
  const auto name = draw_run_identity();
  const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor) {
    for (int program = 0; program < 3; ++program) {
      const auto rendezvous = join(name, rank, 3);
      const auto parcels =
          rendezvous->all_gather("tag", all(3), {std::to_string(program), {}}, within(seconds(30)));
      for (const auto& parcel : parcels) EXPECT_EQ(parcel.bytes, std::to_string(program));
      ::usleep(static_cast<useconds_t>(((rank + program) % 3) * 30'000));
    }
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: clusters#what-can-go-wrong
TEST(HostRendezvous, AnotherNumberOfWorkersIsAMismatch) {
  const auto name = draw_run_identity();
  const auto first = join(name, 0, 2);
  EXPECT_EQ(text_of<Mismatch>([&] { join(name, 2, 3); }),
            "rank 2 was started as one of 3 workers, rank 0 as one of 2");
}

TEST(HostRendezvous, StrangersWhoSayNothingOrNonsenseAreNoHindrance) {
  const auto name = draw_run_identity();
  const auto first = join(name, 0, 2);
  const auto silent = stranger(name);
  const auto loud = stranger(name);
  const std::string nonsense(100, 'x');
  ASSERT_EQ(::write(loud.get(), nonsense.data(), nonsense.size()), 100);
  const auto second = join(name, 1, 2);
  char byte = 0;
  EXPECT_LE(::read(loud.get(), &byte, 1), 0) << "it was hung up";
  std::thread other([&] { second->all_gather("tag", {0, 1}, {"b", {}}, within(seconds(30))); });
  EXPECT_EQ(first->all_gather("tag", {0, 1}, {"a", {}}, within(seconds(30)))[1].bytes, "b");
  other.join();
}

// promise: clusters#how-workers-find-one-another, clusters#what-can-go-wrong, clusters#on-one-host
TEST(HostRendezvous, AnotherUserIsNotLetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto name = draw_run_identity();
  int done[2];
  ASSERT_EQ(::pipe(done), 0);
  const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor) {
    char byte = 0;
    if (rank == 0) {
      const auto served = join(name, 0, 2);
      ::close(done[1]);
      EXPECT_EQ(::read(done[0], &byte, 1), 1);
      return;
    }
    ASSERT_EQ(::seteuid(65534), 0);
    // The server hangs up, also where the client is not so careful.
    const auto socket = stranger(name);
    pollfd polled{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&polled, 1, 20'000), 1);
    EXPECT_EQ(::read(socket.get(), &byte, 1), 0);
    EXPECT_THAT(text_of<Timeout>([&] { join(name, 1, 2, milliseconds(100)); }),
                HasSubstr("a process of another user listens in the place of rank 0"));
    EXPECT_EQ(::write(done[1], &byte, 1), 1);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

// promise: clusters#what-differs-from-tutti-run
TEST(HostRendezvous, AfterTheEndOfRankZeroGathersAreLostAndNoWorkerIsEnded) {
  const auto name = draw_run_identity();
  int answered[2];
  ASSERT_EQ(::pipe(answered), 0);
  const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor) {
    const auto rendezvous = join(name, rank, 3);
    rendezvous->all_gather("tag", all(3), {}, within(seconds(30)));
    char byte = 0;
    if (rank == 0) {
      // Its broker may not have sent the others' answers yet.
      for (int others = 0; others < 2; ++others) ASSERT_EQ(::read(answered[0], &byte, 1), 1);
      ::raise(SIGKILL);
    }
    ASSERT_EQ(::write(answered[1], &byte, 1), 1);
    for (const char* tag : {"while it ends", "afterwards"}) {
      try {
        rendezvous->all_gather(tag, {0, 1, 2}, {}, within(seconds(30)));
        ADD_FAILURE() << "a gather without rank 0";
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), 0);
      }
    }
    EXPECT_EQ(text_of<PeerLost>([&] {
                rendezvous->all_gather("more", {1, 2}, {}, within(seconds(30)));
              }),
              "rank 0 has ended, through which the workers that mpirun has started find one "
              "another: \"more\" cannot be made any more");
  });
  EXPECT_EQ(outcome.ranks[0].signal, SIGKILL);
  EXPECT_TRUE(outcome.ranks[1].good() && outcome.ranks[2].good()) << outcome.describe();
}

TEST(HostRendezvous, ALostWorkerIsNamedToThoseThatWaitForIt) {
  const auto name = draw_run_identity();
  const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor) {
    const auto rendezvous = join(name, rank, 3);
    rendezvous->all_gather("tag", all(3), {}, within(seconds(30)));
    if (rank == 2) ::raise(SIGKILL);
    try {
      rendezvous->all_gather("next", all(3), {}, within(seconds(30)));
      ADD_FAILURE() << "a gather without rank 2";
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.rank(), 2);
    }
    rendezvous->all_gather("end", {0, 1}, {}, within(seconds(30)));
  });
  EXPECT_TRUE(outcome.ranks[0].good() && outcome.ranks[1].good()) << outcome.describe();
}

/// What the others of a host throw where `fail` is how its first worker, of rank 3, fails to
/// connect to other hosts. One of them comes before that, one while it fails.
template <class Expected>
std::vector<std::string> told(const std::function<BrokerHosts()>& fail) {
  const auto name = draw_run_identity();
  const auto as = [&](int rank) {
    return HostWorkers{.name = name,
                       .launcher = "mpirun",
                       .rank = rank,
                       .size = 6,
                       .first = 3,
                       .here = 3,
                       .connect = fail};
  };
  std::vector<std::string> texts(3);
  const auto run = [&](int rank, milliseconds late) {
    return std::thread([&texts, as, rank, late] {
      std::this_thread::sleep_for(late);
      auto& text = texts[static_cast<std::size_t>(rank - 3)];
      try {
        join_host(as(rank), within(seconds(20)));
      } catch (const Expected& error) {
        text = error.what();
      } catch (const std::exception& error) {
        text = std::string("of another class: ") + error.what();
      }
    });
  };
  std::thread threads[] = {run(3, milliseconds(100)), run(4, milliseconds(0)),
                           run(5, milliseconds(300))};
  for (auto& thread : threads) thread.join();
  return texts;
}

// promise: clusters#what-can-go-wrong
TEST(HostRendezvous, WhereTheFirstWorkerOfAHostCannotConnectTheOthersAreToldWhyAtOnce) {
  const auto same = [](const std::string& why) {
    const auto text = "rank 3, through which this host joins, failed: " + why;
    return ::testing::ElementsAre(why, text, text);
  };
  EXPECT_THAT(told<Mismatch>([]() -> BrokerHosts { throw Mismatch("another token"); }),
              same("another token"));
  EXPECT_THAT(told<Timeout>([]() -> BrokerHosts { throw Timeout("no hub"); }), same("no hub"));
  EXPECT_THAT(told<InvalidArgument>([]() -> BrokerHosts { throw InvalidArgument("no token"); }),
              same("no token"));
  EXPECT_THAT(told<PeerLost>([]() -> BrokerHosts { throw PeerLost(1, "host b ended"); }),
              same("host b ended"));
  EXPECT_THAT(told<IoError>([]() -> BrokerHosts { throw IoError(EADDRINUSE, "in use"); }),
              same("in use"));
}

// promise: clusters#what-can-go-wrong
TEST(HostRendezvous, AFirstWorkerThatCannotConnectWaitsForTheOthersForASecondAtMost) {
  const auto begin = Clock::now();
  const HostWorkers alone{.name = draw_run_identity(),
                          .launcher = "mpirun",
                          .size = 2,
                          .here = 2,
                          .connect = []() -> BrokerHosts { throw Mismatch("another token"); }};
  EXPECT_EQ(text_of<Mismatch>([&] { join_host(alone, within(seconds(60))); }), "another token");
  EXPECT_LT(Clock::now() - begin, seconds(20));
}

/// All of a host begin to wait at about the same time.
// promise: clusters#what-can-go-wrong
TEST(HostRendezvous, AFirstWorkerThatGivesUpAtItsDeadlineStillTellsTheOthers) {
  const auto name = draw_run_identity();
  const auto deadline = within(milliseconds(300));
  HostWorkers workers{.name = name, .launcher = "mpirun", .size = 4, .here = 2};
  workers.connect = [&]() -> BrokerHosts {
    std::this_thread::sleep_until(deadline.at + milliseconds(50));
    throw Timeout("not all hosts have come");
  };
  std::thread first([&, workers] { text_of<Timeout>([&] { join_host(workers, deadline); }); });
  workers.rank = 1;
  EXPECT_EQ(text_of<Timeout>([&] { join_host(workers, deadline); }),
            "rank 0, through which this host joins, failed: not all hosts have come");
  first.join();
}

// Two "hosts" under one launcher process have one name for their rendezvous.
// findings-3: C7
TEST(HostRendezvous, AWorkerOfAnotherHostUnderTheSameLauncherProcessIsToldSo) {
  const auto name = draw_run_identity();
  const auto first = join(name, 0, 2);
  EXPECT_THAT(
      text_of<Timeout>([&] { join(name, 0, 2, milliseconds(100)); }),
      HasSubstr("another process serves them: the program before this one has not ended, or "
                "two hosts of the job were started by one process of this machine"));
}

}  // namespace
}  // namespace tutti::test
