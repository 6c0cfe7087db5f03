// Pieces of a sum over hosts that share memory, more of them than are under way.

#include "comm/hosts/host_pipeline.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "comm/group_state.h"
#include "comm/host_link.h"
#include "comm/on_hosts.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

constexpr std::uint64_t kPieces = 50;
constexpr int kHostsOfTest = 3;

/// What a member of a host, the second of three with two workers, gives to a piece.
std::uint64_t given(int rank, std::uint64_t piece) {
  return 1000 * piece + 7 * piece % 5 + static_cast<std::uint64_t>(rank);
}

/// A number of each member: every host adds up the third of pieces that is its own.
class Numbers final : public HostWork {
 public:
  /// What the workers of a host share. Of a piece, by its place in the window.
  struct Memory {
    std::array<std::array<std::uint64_t, 4>, HostPipeline::kMostUnderWay> staged;
    std::array<std::array<std::uint64_t, kHostsOfTest>, HostPipeline::kMostUnderWay> nodes;
    std::array<std::uint64_t, HostPipeline::kMostUnderWay> sums;
    HostPipeline::Counters counters[2];
  };
  Numbers(const GroupState& group, Memory& memory, std::size_t window)
      : layout_(group.layout()), rank_(group.rank()), memory_(memory), window_(window) {}

  void stage(std::uint64_t piece) override {
    memory_.staged[piece % window_][static_cast<std::size_t>(rank_)] = given(rank_, piece);
  }
  void fold(std::uint64_t piece) override {
    if (!layout_.drives()) return;
    auto& node = node_of(piece, layout_.here);
    node = 0;
    for (const int member : layout_.team.members) {
      node += memory_.staged[piece % window_][static_cast<std::size_t>(member)];
    }
  }
  void sum(std::uint64_t piece) override {
    if (!layout_.drives() || owner_of(piece) != layout_.here) return;
    memory_.sums[piece % window_] = 0;
    for (const auto node : memory_.nodes[piece % window_]) memory_.sums[piece % window_] += node;
  }
  void collect(std::uint64_t piece) override { got.push_back(memory_.sums[piece % window_]); }
  void visit_nodes(std::uint64_t piece, int from, int to, const Visit& visit) override {
    if (owner_of(piece) == to) visit(std::as_writable_bytes(std::span(&node_of(piece, from), 1)));
  }
  void visit_sums(std::uint64_t piece, int from, int, const Visit& visit) override {
    if (owner_of(piece) != from) return;
    visit(std::as_writable_bytes(std::span(&memory_.sums[piece % window_], 1)));
  }

  std::vector<std::uint64_t> got;

 private:
  static int owner_of(std::uint64_t piece) { return static_cast<int>(piece % kHostsOfTest); }
  std::uint64_t& node_of(std::uint64_t piece, int host) {
    return memory_.nodes[piece % window_][static_cast<std::size_t>(host)];
  }

  const HostLayout& layout_;
  int rank_;
  Memory& memory_;
  std::size_t window_;
};

TEST(HostPipeline, PiecesThatShareMemoryDoNotMeet) {
  for (const std::size_t window : {1, 2, 5, 8}) {
    run_thread_ranks(
        4,
        [&](const Job& job) {
          const Group group(job);
          const auto memory = group.allocate_common(sizeof(Numbers::Memory), "numbers");
          auto& shared = *reinterpret_cast<Numbers::Memory*>(memory.data());
          std::vector<HostPipeline::Counters*> team;
          for (int m = 0; m < group.state()->team().size(); ++m) {
            team.push_back(&shared.counters[m]);
          }
          std::optional<HostPipeline> pipeline;
          HostLink link(*group.state(), {.name = "test", .lanes = 2});
          link.connect();
          pipeline.emplace(
              *job.state(), group.state()->layout(), group.state()->ranks(), link, team,
              HostPipeline::Options{.nodes = 0, .sums = 1, .window = window, .stages = true});
          for (const std::uint64_t epoch : {0u, 1000u}) {
            Numbers numbers(*group.state(), shared, window);
            pipeline->restart(epoch);
            group.barrier();
            pipeline->add(kPieces);
            while (!pipeline->is_collected()) {
              pipeline->advance(numbers);
              link.check();
            }
            ASSERT_EQ(numbers.got.size(), kPieces);
            for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
              std::uint64_t sum = 0;
              for (int rank = 0; rank < 4; ++rank) sum += given(rank, piece);
              EXPECT_EQ(numbers.got[piece], sum) << piece << " of window " << window;
            }
            group.barrier();
          }
        },
        on({{0}, {1, 2}, {3}}));
  }
}

}  // namespace
}  // namespace tutti::test
