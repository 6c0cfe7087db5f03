#pragma once

// The two levels of a sum over hosts, piece by piece:
//
//   stage → fold │ nodes to the host that adds up │ sum │ sums to all │ collect
//
// Each member of a host does its share of what stands between the bars, and tells the others of its
// host by counters how far it is; the first member drives the link. Pieces come to each bar in
// their order, and a window of them is under way: one travels while another is folded.
//
// Threads: one; the link's own threads count what has come. Failure: that of the work and of the
// channel; after HostLink::drop(), restart().

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "comm/hosts/host_channel.h"
#include "comm/hosts/host_layout.h"
#include "job/job_state.h"
#include "job/wire/board.h"
#include "job/wire/rank_set.h"

namespace tutti {

/// What a member does with a piece, and where the piece lies. Memory of a piece may be that of the
/// piece a window before it.
class HostWork {
 public:
  using Visit = std::function<void(std::span<std::byte>)>;

  virtual ~HostWork() = default;
  /// Copies what this member gives to where its host reads it; after all else, results from there.
  virtual void stage(std::uint64_t /*piece*/) {}
  virtual void collect(std::uint64_t /*piece*/) {}
  /// This member's share of what its host has by itself.
  virtual void fold(std::uint64_t piece) = 0;
  /// This member's share of what its host adds up of all hosts' nodes.
  virtual void sum(std::uint64_t piece) = 0;
  /// The nodes, or sums, that host `from` has for host `to`: a message for each call of `visit`,
  /// alike on both.
  virtual void visit_nodes(std::uint64_t piece, int from, int to, const Visit& visit) = 0;
  virtual void visit_sums(std::uint64_t piece, int from, int to, const Visit& visit) = 0;
};

struct alignas(kCacheLine) Counter {
  std::atomic<std::uint64_t> value;
};

class HostPipeline {
 public:
  enum Stage { kStaged, kFolded, kSummed, kCollected, kStages };
  static constexpr std::size_t kMostUnderWay = 8;
  using Words = std::array<std::atomic<std::uint64_t>, kMostUnderWay>;
  /// How far a member is, in memory of its host that was zero.
  struct Counters {
    std::array<Counter, kStages> of;     ///< pieces it has come through
    alignas(kCacheLine) Words came;      ///< the driver's: pieces of which all nodes have come,
    alignas(kCacheLine) Words gathered;  ///< and for which nothing is under way
  };
  struct Options {
    int nodes = 0;  ///< lanes of the channel
    int sums = 0;
    std::size_t window = kMostUnderWay;  ///< pieces between whose memory is reused
    bool stages = false;                 ///< else there is nothing to stage or collect
  };
  /// Keeps references. `ranks` are the job ranks of the group's members, `team` the counters of
  /// those of this host.
  HostPipeline(JobState& job, const HostLayout& layout, std::vector<int> ranks,
               HostChannel& channel, std::vector<Counters*> team, Options options);

  /// Pieces are numbered from 0 again. `epoch` is larger than that of any piece so far, by at least
  /// as many as there were; alike on all members.
  void restart(std::uint64_t epoch);
  /// So many more pieces, alike on all members.
  void add(std::uint64_t pieces) { end_ += pieces; }
  /// Does one thing that can be done now; false where there is none.
  bool advance(HostWork& work);
  /// Whether this member has collected everything.
  bool is_collected() const { return through(kCollected) == end_; }
  /// Whether everything has come and left.
  bool is_gathered() const;
  /// Pieces that this member has come through.
  std::uint64_t through(Stage stage) const { return count(layout_.team.rank, stage); }
  /// Job ranks of this host's members that are behind this one, which has come through so many.
  RankSet behind(Stage stage, std::uint64_t pieces) const;
  /// Returns the job ranks on whose part the oldest piece waits that this member has not collected.
  /// It names no others: workers who seem to wait for one another would be told so.
  RankSet late() const;

 private:
  std::uint64_t count(int team_member, Stage stage) const;
  /// Returns the least count of this host's members.
  std::uint64_t least(Stage stage) const;
  /// The driver's word of a piece, and whether it tells of that piece.
  std::atomic<std::uint64_t>& word_of(Words Counters::*words, std::uint64_t piece) const {
    return (team_.front()->*words)[piece % kMostUnderWay];
  }
  bool has(Words Counters::*words, std::uint64_t piece) const {
    return word_of(words, piece).load(std::memory_order_acquire) == epoch_ + piece + 1;
  }
  /// Whether the memory of that piece is free.
  bool has_room(std::uint64_t piece) const;
  bool tell(Stage stage);
  bool drive(HostWork& work);
  void receive(HostWork& work, std::uint64_t piece);
  void send_nodes(HostWork& work, std::uint64_t piece);
  void send_sums(HostWork& work, std::uint64_t piece);

  JobState& job_;
  const HostLayout& layout_;
  std::vector<int> ranks_;
  HostChannel& channel_;
  std::vector<Counters*> team_;
  Options options_;
  std::uint64_t epoch_ = 0;
  std::uint64_t end_ = 0;
  // The driver has posted what comes, and what leaves, of so many pieces.
  std::uint64_t received_ = 0;
  std::uint64_t sent_nodes_ = 0;
  std::uint64_t sent_sums_ = 0;
  std::deque<OpenMessages> arriving_;  ///< nodes, by piece % kMostUnderWay
  std::deque<OpenMessages> others_;    ///< nodes that leave, and sums
};

}  // namespace tutti
