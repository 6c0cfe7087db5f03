// Peers that are processes, killed and stopped in the middle of what they send and receive.

#include <csignal>
#include <deque>
#include <string>

#include <gmock/gmock.h>

#include "base/deadline.h"
#include "support/running_command.h"

namespace tutti::test {
namespace {

using std::chrono::microseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// Each peer's process of one link.
class Peers {
 public:
  explicit Peers(int peers) {
    for (int self = 0; self < peers; ++self) {
      // The worker takes the place of the command, whose path is an argument that it does not read.
      workers_.emplace_back(std::vector<std::string>{},
                            CommandSetup{.before = {TUTTI_LINK_WORKER, std::to_string(self),
                                                    std::to_string(peers), folder_.file("store")}});
    }
    for (auto& worker : workers_) {
      EXPECT_TRUE(worker.wait_for("ready")) << worker.err;
      EXPECT_TRUE(worker.wait_for("moved=")) << worker.out;
    }
  }
  RunningCommand& operator[](int peer) { return workers_[peer]; }

 private:
  TemporaryFolder folder_;
  std::deque<RunningCommand> workers_;
};

long long now_us() { return Clock::now().time_since_epoch() / microseconds(1); }

/// The lines that begin so.
std::vector<std::string> lines(const std::string& text, const std::string& begin) {
  auto all = lines_of(text);
  std::erase_if(all, [&](const auto& line) { return !line.starts_with(begin); });
  return all;
}
long long time_of(const std::string& line) { return std::stoll(line.substr(line.find("us=") + 3)); }
int count_of(const std::string& text, const std::string& part) {
  return static_cast<int>(lines(text, part).size());
}

/// The link of a peer ends although another one is dead or stopped.
void close(RunningCommand& worker) {
  worker.signal(SIGTERM);
  EXPECT_EQ(worker.finish(), 0) << worker.err;
  ASSERT_THAT(lines(worker.out, "closed"), SizeIs(1));
  EXPECT_LT(time_of(lines(worker.out, "closed")[0]), 5'000'000);
}

TEST(GlooLostPeer, AKilledPeerIsLostAtOnce) {
  long long slowest = 0;
  for (int round = 0; round < 5; ++round) {
    Peers peers(3);
    const auto begin = now_us();
    peers[2].signal(SIGKILL);
    for (const int survivor : {0, 1}) {
      auto& worker = peers[survivor];
      ASSERT_TRUE(worker.wait_for("failed=2", 3)) << worker.out << worker.err;
      EXPECT_THAT(
          lines(worker.out, "failed=2"),
          Each(AllOf(HasSubstr("kind=0"), HasSubstr("the connection"), Not(HasSubstr("GLHF")))));
      for (const auto& line : lines(worker.out, "failed=2")) {
        slowest = std::max(slowest, time_of(line) - begin);
      }
    }
    // The others still move bytes.
    for (const int survivor : {0, 1}) {
      auto& worker = peers[survivor];
      const auto other = "moved=" + std::to_string(1 - survivor);
      EXPECT_TRUE(worker.wait_for(other, count_of(worker.out, other) + 3)) << worker.out;
      EXPECT_EQ(count_of(worker.out, "failed=" + std::to_string(1 - survivor)), 0);
    }
    close(peers[0]);
    EXPECT_TRUE(peers[1].wait_for("failed=0", 3)) << peers[1].out;
    EXPECT_THAT(lines(peers[1].out, "failed=0"), Each(HasSubstr("kind=0")));
    close(peers[1]);
  }
  RecordProperty("slowest_us", std::to_string(slowest));
  std::printf("the slowest of 10 was told after %lld us\n", slowest);
  EXPECT_LT(slowest, 5'000'000);
}

TEST(GlooLostPeer, ALinkEndsThoughAPeerHasStopped) {
  Peers peers(3);
  peers[2].signal(SIGSTOP);
  for (const int survivor : {0, 1}) {
    auto& worker = peers[survivor];
    if (survivor == 1) {
      EXPECT_TRUE(worker.wait_for("failed=0", 3)) << worker.out;
    }
    close(worker);
    EXPECT_THAT(lines(worker.out, "failed=2"), AllOf(SizeIs(3), Each(HasSubstr("kind=2"))));
  }
  peers[2].signal(SIGKILL);
  peers[2].finish();
}

}  // namespace
}  // namespace tutti::test
