// Nodes that are folded elsewhere than in the arena, beside those of the arena.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sync/gradient_oracle.h"
#include "sync/nodes/leaf_folder.h"
#include "sync/own_board.h"
#include "sync/plan/assignment.h"

namespace tutti::test {
namespace {

// A worker's nodes in memory of its own; a gradient is a Values.
class Apart final : public NodesElsewhere {
 public:
  void reset() override { nodes_.clear(); }
  void set(std::size_t p, std::uint8_t slot, const void* gradient, double weight, bool) override {
    ASSERT_FALSE(nodes_.contains({p, slot}));
    nodes_[{p, slot}] = times(gradient, weight);
  }
  void add(std::size_t p, std::uint8_t slot, const void* gradient, double weight) override {
    plus(p, slot, times(gradient, weight));
  }
  void add_node(std::size_t p, std::uint8_t left, std::uint8_t right) override {
    const auto node = nodes_.extract({p, right});
    ASSERT_FALSE(node.empty());
    plus(p, left, node.mapped());
  }
  bool holds(std::size_t p, std::uint8_t slot) const override { return nodes_.contains({p, slot}); }
  bool leave(std::size_t p, std::uint8_t slot, std::byte* to, bool completes) override {
    const auto node = nodes_.extract({p, slot});
    if (node.empty()) throw std::logic_error("what is not there leaves");
    EXPECT_FALSE(completed.contains(p)) << "another node after the one that is the last";
    std::memcpy(to, node.mapped().data(), node.mapped().size() * sizeof(float));
    if (completes) completed.insert(p);
    return true;
  }
  std::size_t held() const { return nodes_.size(); }
  std::set<std::size_t> completed;

 private:
  static Values times(const void* gradient, double weight) {
    auto values = *static_cast<const Values*>(gradient);
    for (auto& value : values) value *= static_cast<float>(weight);
    return values;
  }
  void plus(std::size_t p, std::uint8_t slot, const Values& values) {
    ASSERT_TRUE(nodes_.contains({p, slot})) << "added to what has left";
    auto& node = nodes_[{p, slot}];
    for (std::size_t i = 0; i < values.size(); ++i) node[i] += values[i];
  }
  std::map<std::pair<std::size_t, int>, Values> nodes_;
};

struct TwoFolder {
  TwoFolder() : folder(plan, arena.data(), *board, {.per_parameter_weights = true}, {}) {}
  Plan plan{{{"p", {100}, {1}, 100, DType::float32}, {"q", {100}, {1}, 100, DType::float32}}, {}};
  std::vector<std::byte> arena = std::vector<std::byte>(plan.arena_bytes(kMaxSlots));
  OwnBoard board{2};
  LeafFolder folder;
};

/// When this worker hears where its leaves are among all.
enum class Start : std::uint8_t { at_first, before_the_second, at_the_end };

/// Leaves [begin, begin + count) in `apart` and in the arena: at the end both have the same nodes.
void fold_both(std::int64_t begin, std::int64_t count, Start start, bool counted) {
  SCOPED_TRACE(testing::Message() << begin << " + " << count << ", " << int(start) << counted);
  TwoFolder here;
  TwoFolder there;
  Apart apart;
  there.folder.fold_in(&apart);
  std::set<std::size_t> in_last;
  const auto both = [&](const auto& call) {
    call(here, false);
    call(there, true);
  };
  both([&](TwoFolder& f, bool) {
    f.folder.reset(counted ? std::optional(count) : std::nullopt);
    if (start == Start::at_first) f.folder.set_start(begin);
  });
  std::mt19937 random(static_cast<unsigned>(begin * 100 + count));
  for (std::int64_t l = 0; l < count; ++l) {
    const double weight = std::array{1.0, 0.0, 3.0, 0.5}[random() % 4];
    std::array<std::vector<Values>, 2> given;  // in parts
    for (std::size_t p = 0; p < 2; ++p) {
      for (auto parts = random() % 3; parts > 0; --parts) {
        given[p].push_back(random_values(random(), 100));
      }
      if (l + 1 == count && weight > 0 && !given[p].empty()) in_last.insert(p);
    }
    both([&](TwoFolder& f, bool elsewhere) {
      if (start == Start::before_the_second && l == 1) f.folder.set_start(begin);
      f.folder.begin_leaf(weight);
      for (std::size_t p = 0; p < 2; ++p) {
        for (const auto& part : given[p]) {
          const bool last = &part == &given[p].back();
          const void* const at = part.data();
          f.folder.write(p, elsewhere ? &part : at, last);
        }
      }
      f.folder.end_leaf();
    });
  }
  both([&](TwoFolder& f, bool) {
    if (!f.folder.start()) f.folder.set_start(begin);
  });
  const bool knew = counted && (start == Start::at_first || count == 1);
  if (knew || (counted && start == Start::before_the_second)) {
    EXPECT_EQ(apart.held(), 0u) << "nodes leave as soon as nothing is added to them";
    EXPECT_EQ(apart.completed, in_last);
  }
  there.folder.let_all_leave();
  EXPECT_EQ(apart.held(), 0u);
  ASSERT_EQ(here.folder.nodes().size(), there.folder.nodes().size());
  for (std::size_t k = 0; k < here.folder.nodes().size(); ++k) {
    for (std::size_t p = 0; p < 2; ++p) {
      const auto node_of = [&](TwoFolder& f) -> std::optional<Values> {
        const auto slot = f.board->slot_table(static_cast<int>(k))[p];
        if (slot == kAbsent) return {};
        const auto* at =
            reinterpret_cast<const float*>(f.arena.data() + f.plan.node_place(p, slot));
        return Values(at, at + 100);
      };
      EXPECT_EQ(node_of(here), node_of(there)) << "node " << k << " of parameter " << p;
      EXPECT_EQ(here.board->weights(static_cast<int>(k))[p],
                there.board->weights(static_cast<int>(k))[p]);
    }
  }
}

// promise: gpu#a-trainer
TEST(LeafFolder, NodesThatAreFoldedElsewhereLeaveOnceAndAreTheSame) {
  for (const auto start : {Start::at_first, Start::before_the_second, Start::at_the_end}) {
    for (const bool counted : {true, false}) {
      for (std::int64_t begin = 0; begin < 8; ++begin) {
        for (std::int64_t count = 1; count < 10; ++count) fold_both(begin, count, start, counted);
      }
    }
  }
}

// A range of eight leaves is three nodes in the arena at most, and one where it is aligned.
TEST(LeafFolder, NodesThatAreFoldedElsewhereTakeTheArenaThatTheyLeaveTo) {
  for (std::int64_t begin = 0; begin < 8; ++begin) {
    TwoFolder f;
    Apart apart;
    f.folder.fold_in(&apart);
    f.folder.reset(8);
    f.folder.set_start(begin);
    for (std::uint64_t l = 0; l < 8; ++l) {
      const auto values = random_values(l, 100);
      f.folder.begin_leaf(1);
      f.folder.write(0, &values, true);
      f.folder.end_leaf();
    }
    EXPECT_EQ(f.folder.slots_used(), node_count({begin, begin + 8})) << begin;
  }
}

}  // namespace
}  // namespace tutti::test
