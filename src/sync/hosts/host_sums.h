#pragma once

// The sums of a step's gradients where workers are on several hosts: each host adds up what it can
// of its own nodes, one host for each element adds up what the hosts have, in tree order, and all
// get the sum. So a host sends a gradient about twice, (hosts − 1) / hosts of it each time, however
// many workers it has.
//
//   nodes of this host → out │ link │ in → sum of a slice │ link │ sums of all slices
//
// A bucket is cut into pieces, which go through a HostPipeline; a piece has a slice for each host.
// Lists of rows, and nodes that become messages where hosts share a logical worker, are not added
// up first: every host gets all of them. Messages of codecs and copies of parameters, pieces of
// memory that one host has made, take the same link.
//
// Threads: one; the link's own threads store words that are waited for. Failure: that of the link
// (comm/host_link.h); drop() ends a step that failed, and after that connect() makes another link.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/host_copies.h"
#include "comm/host_link.h"
#include "comm/hosts/host_layout.h"
#include "comm/hosts/host_pipeline.h"
#include "job/wire/board.h"
#include "sync/nodes/node_store.h"
#include "sync/nodes/slice_fold.h"
#include "sync/nodes/step_memory.h"
#include "sync/plan/tile_share.h"
#include "tutti/group.h"
#include "tutti/job.h"

namespace tutti {

class HostSums final : HostWork {
  /// Nodes, sums, lists and pieces are messages of lanes of their own: what precedes what among
  /// them differs from host to host.
  enum Lane { kNodes, kSums, kLists, kPieces, kLanes };

 public:
  struct Options {
    std::string name = {};  ///< in errors: what is trained
    /// Whether the sum of a dense parameter is wanted.
    std::function<bool(std::uint32_t parameter)> wanted = {};
    std::optional<std::chrono::milliseconds> deadline = {};
  };
  /// Null where the group is on one host. From then on `nodes` has the sums, and sends by itself
  /// only what is not added up here. Collective.
  static std::unique_ptr<HostSums> make(StepMemory& memory, NodeStore& nodes, Options options);
  HostSums(const HostSums&) = delete;
  HostSums& operator=(const HostSums&) = delete;

  /// Begins a step, numbered from 1, ascending.
  void open(std::uint64_t step);
  /// Every worker has published these parameters' tables, and this host's nodes of them are
  /// complete; nodes are collected. All workers call it in the same order.
  void add(std::span<const std::uint32_t> parameters);
  /// All was added, and every worker has published its step.
  void close();
  /// Does what this worker can do now. True once all sums and lists are in place.
  bool progress();
  /// Job ranks on whose part this worker waits.
  RankSet missing() const;
  /// Makes the link if there is none. Collective among the first workers of the hosts.
  void connect() { link_.connect(); }
  bool is_connected() const { return link_.is_connected(); }
  /// Nothing is being added up: the first worker of each host begins to give these to all others.
  void give(std::span<const HostPiece> pieces) { pieces_given_.post(pieces); }
  /// Whether all that this host gives, and gets, is there. Throws as HostLink::check().
  bool has_given() {
    link_.check();
    return pieces_given_.are_done();
  }
  /// Job ranks from or to whom something is on its way.
  RankSet missing_pieces() const { return pieces_given_.missing(); }
  /// The step has failed: what is under way ends.
  void drop() noexcept {
    link_.drop();
    pieces_given_.forget();
    lists_.forget();
  }

 private:
  /// What a host's workers share, in memory that was zero.
  struct Words {
    HostPipeline::Counters members[kMaxWorkersPerHost];
    alignas(kCacheLine) std::atomic<std::uint64_t> finished;  ///< the step whose sums are in place
  };
  static constexpr std::size_t kWindow = HostPipeline::kMostUnderWay;
  /// What one host adds up of a piece.
  struct Slice {
    std::vector<ElementRange> ranges;
    std::vector<std::size_t> message_bytes;  ///< by host that sends nodes of it; empty: not known
  };
  /// What a host has of a range, and where it lies in that host's message.
  struct Part {
    const HostSubtree* subtree;
    std::size_t offset;
  };
  using PartsVisit = std::function<void(const ElementRange&, std::span<const Part>)>;

  HostSums(StepMemory& memory, NodeStore& nodes, Options options);
  std::byte* staging(bool out, std::uint64_t piece, int host) const;
  std::byte* sum_at(std::uint32_t parameter) const;
  void find_subtrees();
  const std::vector<HostSubtree>& subtrees_of(std::uint32_t parameter) const {
    return subtrees_[static_cast<std::size_t>(places_[parameter])];
  }
  /// Calls `visit`, where there is one, for this worker's part of each range of a slice, with what
  /// hosts have of it. Sets the bytes of each host's message.
  void visit_parts(Slice& slice, const PartsVisit& visit) const;
  DType type_of(std::uint32_t parameter) const {
    return nodes_.plan().parameters()[parameter].node_type;
  }
  /// From the parameter's first element to the range.
  std::size_t bytes_before(const ElementRange& range) const {
    return static_cast<std::size_t>(range.begin) * size_of(type_of(range.parameter));
  }
  std::size_t bytes_of(const ElementRange& range) const {
    return static_cast<std::size_t>(range.end - range.begin) * size_of(type_of(range.parameter));
  }
  Slice& slice_of(std::uint64_t piece, int host) {
    return pieces_[piece][static_cast<std::size_t>(host)];
  }
  void post_lists();

  void fold(std::uint64_t piece) override;
  void sum(std::uint64_t piece) override;
  void visit_nodes(std::uint64_t piece, int from, int to, const Visit& visit) override;
  void visit_sums(std::uint64_t piece, int from, int to, const Visit& visit) override;

  Group group_;
  GroupState& state_;
  NodeStore& nodes_;
  Options options_;
  const HostLayout& layout_;
  std::size_t slot_bytes_;  ///< of staging memory
  SharedMemory memory_;     ///< sums, staging memory
  Words* words_;
  SliceFold slices_;

  std::uint64_t step_ = 0;
  std::uint64_t shape_ = ~std::uint64_t{0};  ///< NodeStore::shape() of subtrees_
  /// By place of those who have a parameter among the workers of a leaf.
  std::vector<std::vector<HostSubtree>> subtrees_;
  std::vector<int> places_;                ///< by parameter, in this step
  std::size_t most_subtrees_ = 1;          ///< of one host
  std::deque<std::vector<Slice>> pieces_;  ///< by host
  bool closed_ = false;
  bool posted_lists_ = false;
  PostedPieces lists_;
  PostedPieces pieces_given_;
  std::optional<HostPipeline> pipeline_;
  HostLink link_;  ///< last, so that its operations end first
};

}  // namespace tutti
