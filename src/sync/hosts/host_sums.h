#pragma once

// The sums of a step's gradients where workers are on several hosts: each host adds up what it can
// of its own nodes, one host for each element adds up what the hosts have, in tree order, and all
// get the sum. So a host sends a gradient about twice, (hosts − 1) / hosts of it each time, however
// many workers it has.
//
//   nodes of this host → out │ link │ in → sum of a slice │ link │ sums of all slices
//
// A bucket is cut into pieces, so that folds and both ways of the link overlap; a piece has a slice
// for each host. The workers of a host share the folds, its first one drives the link. Lists of
// rows, and nodes that become messages where hosts share a logical worker, are not added up first:
// every host gets all of them. Messages of codecs and copies of
// parameters, pieces of memory that one host has made, take the same link.
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
#include "job/wire/board.h"
#include "sync/nodes/node_store.h"
#include "sync/nodes/slice_fold.h"
#include "sync/plan/tile_share.h"
#include "tutti/group.h"
#include "tutti/job.h"

namespace tutti {

class HostSums {
  /// Nodes, sums, lists and pieces are messages of lanes of their own: what precedes what among
  /// them differs from host to host.
  enum Lane { kNodes, kSums, kLists, kPieces, kLanes };  // pieces last: they may outlast sums

 public:
  struct Options {
    std::string name = {};  ///< in errors: what is trained
    /// Whether the sum of a dense parameter is wanted.
    std::function<bool(std::uint32_t parameter)> wanted = {};
    std::optional<std::chrono::milliseconds> deadline = {};
  };
  /// Null where the group is on one host. From then on `nodes` has the sums, and sends by itself
  /// only what is not added up here. Collective.
  static std::unique_ptr<HostSums> make(const Group& group, NodeStore& nodes, Options options);
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
  }

 private:
  /// A worker's words, on its own cache line: pieces that it has come through in a step.
  struct alignas(kCacheLine) Progress {
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint64_t> reduced;
  };
  static constexpr std::size_t kWindow = 8;  ///< pieces between whose staging memory is reused
  /// The words of a host, in zero-filled memory that its workers share. A word is the step and a
  /// number within it, or less.
  struct Words {
    Progress members[kMaxWorkersPerHost];
    alignas(kCacheLine) std::atomic<std::uint64_t> sent[kWindow];  ///< piece whose sends are done
    alignas(kCacheLine) std::atomic<std::uint64_t> arrived[kWindow];  ///< piece that has come in
    alignas(kCacheLine) std::atomic<std::uint64_t> finished;  ///< the step whose sums are in place
  };
  static constexpr std::size_t kWordBytes = (sizeof(Words) + 4095) / 4096 * 4096;
  struct Piece {
    std::vector<std::vector<ElementRange>> slices;  ///< by host
    // Operations with nodes that are not complete yet.
    std::atomic<int> sends{0};
    std::atomic<int> receives{0};
  };
  /// The tiles [begin, end) of a slice, counted over all its ranges.
  struct TilePart {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  using Visit = std::function<void(const HostSubtree&, const ElementRange&, std::size_t offset)>;

  HostSums(const Group& group, NodeStore& nodes, Options options);
  bool drives() const { return team().rank == 0; }
  const Team& team() const { return nodes_.team(); }
  std::uint64_t tag(std::size_t number) const { return (step_ << 32) | number; }
  /// The least number of all workers of this host.
  std::size_t least(std::atomic<std::uint64_t> Progress::*word) const;
  std::byte* staging(bool out, std::size_t piece, int host) const;
  std::byte* sum_at(std::uint32_t parameter) const;
  void find_blocks();
  const std::vector<HostSubtree>& blocks_of(std::uint32_t parameter) const {
    return blocks_[static_cast<std::size_t>(places_[parameter])];
  }
  /// Calls `visit` for what a host has of a slice: the range of each block, and where it lies in
  /// the host's message. Returns the bytes of that.
  std::size_t visit(const std::vector<ElementRange>& slice, int host, std::optional<TilePart> part,
                    const Visit& visit) const;
  TilePart own_part(const std::vector<ElementRange>& slice) const;
  std::vector<ElementRange> clipped(const std::vector<ElementRange>& slice, TilePart part) const;
  DType type_of(std::uint32_t parameter) const {
    return nodes_.plan().parameters()[parameter].node_type;
  }
  /// From the parameter's first element to the range.
  std::size_t bytes_before(const ElementRange& range) const {
    return static_cast<std::size_t>(range.begin) * size_of(type_of(range.parameter));
  }
  std::vector<std::span<std::byte>> runs_of(const std::vector<ElementRange>& slice) const;

  void fill(const Piece& piece, std::size_t k);
  void reduce(const Piece& piece, std::size_t k);

  // ---- host_sums_link.cpp: what the worker does that drives the link ----

  void drive();
  void post_in(Piece& piece, std::size_t k);
  void post_out(Piece& piece, std::size_t k);
  void post_sums(const Piece& piece);
  void post_lists();
  /// What completes an operation of the piece: the last one stores the word.
  std::function<void()> last_of(std::atomic<int>& open, std::atomic<std::uint64_t>& word,
                                std::size_t k);

  Group group_;
  GroupState& state_;
  NodeStore& nodes_;
  Options options_;
  int hosts_;
  int here_;                ///< this host
  std::size_t slot_bytes_;  ///< of staging memory
  SharedMemory memory_;     ///< words, sums, staging memory
  Words* words_;
  SliceFold slices_;

  std::uint64_t step_ = 0;
  std::uint64_t shape_ = ~std::uint64_t{0};  ///< NodeStore::shape() of blocks_
  /// By place of those who have a parameter among the workers of a leaf.
  std::vector<std::vector<HostSubtree>> blocks_;
  std::vector<int> places_;      ///< by parameter, in this step
  std::size_t most_blocks_ = 1;  ///< of one host
  std::deque<Piece> pieces_;
  bool closed_ = false;
  std::size_t filled_ = 0;
  std::size_t reduced_ = 0;

  // Of the worker that drives the link.
  std::size_t posted_in_ = 0;
  std::size_t posted_out_ = 0;
  std::size_t posted_sums_ = 0;
  bool posted_lists_ = false;
  PostedPieces pieces_given_;
  HostLink link_;  ///< last, so that its operations end first
};

}  // namespace tutti
