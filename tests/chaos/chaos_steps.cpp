#include "chaos/chaos_steps.h"

#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "sync/averaging/worker_copies.h"
#include "sync/coded/coded_model.h"
#include "sync/plan/row_list.h"
#include "sync/rows/row_gradients.h"
#include "sync/whole_step.h"
#include "tutti/share.h"

namespace tutti::test::chaos {
namespace {

using namespace coded;  // NOLINT(google-build-using-namespace): its model is this one

const std::vector<std::size_t> kSizes = {0, 1, 17, 63, 65, 4097, 9000, 20000};

ExchangeOptions options_of(const StepsOfCase& steps) {
  ExchangeOptions options;
  options.name = steps.name;
  options.fusion = 1024;
  options.first_fusion = 128;
  return options;
}

std::vector<std::size_t> draw_counts(Draw& draw) {
  std::vector<std::size_t> counts;
  for (std::uint64_t p = 0, all = 2 + draw.below(5); p < all; ++p)
    counts.push_back(draw.of(kSizes));
  return counts;
}

const ModelStep& model_step(const StepsOfCase& steps, const std::vector<std::size_t>& counts,
                            std::int64_t step, std::int64_t leaves, unsigned absent) {
  return steps.model.get(steps.seed + static_cast<std::uint64_t>(step), [&] {
    ModelStep one;
    const auto seed = static_cast<std::int64_t>(steps.seed % 1000000007) + step;
    double sum = 0;
    for (std::int64_t l = 0; l < leaves; ++l) {
      one.leaves.push_back(random_leaf(counts, seed, l, absent));
      one.weights.push_back(static_cast<double>(1 + (l * 7 + step) % 4));
      sum += one.weights.back();
    }
    for (std::size_t p = 0; p < counts.size(); ++p) {
      one.expected.push_back(reduced(one.leaves, one.weights, p, sum));
    }
    return one;
  });
}

void write_leaf(StepExchange& exchange, const Leaf& leaf, const Reports& reports) {
  for (std::size_t i = leaf.size(); i > 0; --i) {
    if (leaf[i - 1]) exchange.leaves().write(i - 1, leaf[i - 1]->data(), true);
    reports.chance();
  }
}

void expect_reduced(const StepExchange& exchange, const ModelStep& model, std::int64_t step,
                    const StepsOfCase& steps) {
  for (std::size_t p = 0; p < model.expected.size(); ++p) {
    const auto& expected = model.expected[p];
    if (!expected || expected->empty()) continue;
    if (std::memcmp(exchange.nodes().result(p), expected->data(),
                    expected->size() * sizeof(float)) != 0) {
      steps.reports.wrong(fmt::format("{}, step {}, parameter {}", steps.name, step, p));
    }
  }
}

/// A step of leaves that are dealt evenly.
void run_scope(StepExchange& exchange, const ModelStep& model, std::int64_t step,
               const StepsOfCase& steps) {
  const auto& group = exchange.group();
  const auto [begin, end] =
      share_of(static_cast<std::int64_t>(model.leaves.size()), group.rank(), group.size());
  exchange.open_scope(end - begin);
  for (auto l = static_cast<std::size_t>(begin); l < static_cast<std::size_t>(end); ++l) {
    exchange.leaves().begin_leaf(model.weights[l]);
    write_leaf(exchange, model.leaves[l], steps.reports);
    exchange.leaves().end_leaf();
  }
  finish(exchange);
  expect_reduced(exchange, model, step, steps);
}

void expect(const StepsOfCase& steps, bool good, const std::string& what) {
  if (!good) steps.reports.wrong(fmt::format("{}: {}", steps.name, what));
}

}  // namespace

void run_dense(const Group& group, const StepsOfCase& steps) {
  Draw draw(steps.seed);
  const auto counts = draw_counts(draw);
  StepExchange exchange(group, plan_of(counts), options_of(steps));
  for (std::int64_t step = 1; step <= 3; ++step) {
    const auto leaves = static_cast<std::int64_t>(1 + draw.below(13));
    run_scope(exchange, model_step(steps, counts, step, leaves, 2), step, steps);
  }
}

/// Alternately of several subtrees of each host, and of one.
void run_large(const Group& group, const StepsOfCase& steps) {
  const std::vector<std::size_t> counts = {1'500'001, 300};
  StepExchange exchange(group, plan_of(counts), options_of(steps));
  for (std::int64_t step = 1; step <= 2; ++step) {
    const auto leaves = group.size() + (step == 1 ? 3 : 0);
    run_scope(exchange, model_step(steps, counts, step, leaves, 0), step, steps);
  }
}

void run_backward(const Group& group, const StepsOfCase& steps) {
  Draw draw(steps.seed);
  auto counts = draw_counts(draw);
  counts.push_back(5000);  // not empty
  StepExchange exchange(group, plan_of(counts), options_of(steps));
  for (std::int64_t step = 1; step <= 4; ++step) {
    const auto& model = model_step(steps, counts, step, group.size(), 1);
    const auto rank = static_cast<std::size_t>(group.rank());
    const bool drops = draw.one_in(3);
    const auto failing = draw.below(static_cast<std::uint64_t>(group.size()));
    exchange.open_one_backward(model.weights[rank]);
    if (drops && rank == failing) {
      exchange.leaves().write(counts.size() - 1, random_values(7, 5000).data(), true);
      steps.reports.chance();
      exchange.protocol().fail("a loss of its own");
      continue;
    }
    try {
      write_leaf(exchange, model.leaves[rank], steps.reports);
      finish(exchange);
      expect(steps, !drops, fmt::format("step {} was not dropped", step));
      expect_reduced(exchange, model, step, steps);
    } catch (const PeerFailed& failed) {
      expect(steps, drops && failed.rank() == group.job_rank(static_cast<int>(failing)),
             failed.what());
    }
  }
}

void run_rows(const Group& group, const StepsOfCase& steps) {
  constexpr std::int64_t kRows = 70, kWidth = 9, kShards = 11;
  const TensorSpec spec{.name = "table",
                        .shape = {kRows, kWidth},
                        .strides = {kWidth, 1},
                        .count = kRows * kWidth,
                        .dtype = DType::float32,
                        .row_sparse = true};
  StepExchange exchange(group, Plan({spec}, {}),
                        {.name = steps.name, .sync_buffers = false, .reports_magnitude = true});
  RowGradients rows(exchange);
  const auto mine = assign_shards(kShards, group.size())[static_cast<std::size_t>(group.rank())];
  for (std::int64_t step = 1; step <= 3; ++step) {
    // Each row is a parameter of the model.
    const auto& model =
        model_step(steps, std::vector<std::size_t>(kRows, kWidth), step, kShards, 6);
    exchange.open_shards(mine.begin, mine.count());
    for (auto s = static_cast<std::size_t>(mine.begin); s < static_cast<std::size_t>(mine.end);
         ++s) {
      std::vector<std::int64_t> there;
      Values values;
      for (std::int64_t row = kRows - 1; row >= 0; --row) {
        const auto& leaf = model.leaves[s][static_cast<std::size_t>(row)];
        if (!leaf) continue;
        there.push_back(row);
        values.insert(values.end(), leaf->begin(), leaf->end());
      }
      exchange.leaves().begin_leaf(model.weights[s]);
      exchange.leaves().write(
          0, RowEntries{there.data(), values.data(), static_cast<std::int64_t>(there.size())},
          true);
      exchange.leaves().end_leaf();
      steps.reports.chance();
    }
    exchange.arrive({});
    rows.begin(1);
    rows.keep(OwnedRanges(exchange, rows).of(group.rank()), {});
    exchange.protocol().barrier("the sum of its rows in");
    std::size_t found = 0;
    rows.merge(0, {0, kRows}, [&](const RowList& list) {
      for (std::size_t k = 0; k < list.rows.size(); ++k, ++found) {
        const auto& row = model.expected[list.rows[k]];
        constexpr auto kBytes = kWidth * sizeof(float);
        expect(steps, row && std::memcmp(row->data(), list.values + k * kBytes, kBytes) == 0,
               fmt::format("step {}, row {}", step, list.rows[k]));
      }
    });
    const auto there = std::ranges::count_if(model.expected, [](const auto& r) { return !!r; });
    expect(steps, found == static_cast<std::size_t>(there), fmt::format("step {}: rows", step));
    exchange.complete([&] { rows.note(); });
    StepReport report;
    rows.commit(report);
  }
}

namespace {

struct CodedCase {
  Case test;
  std::vector<State> states;
};

std::vector<CodedCase>& coded_cases() {
  static std::vector<CodedCase> all;
  return all;
}

}  // namespace

void prepare_model() {
  for (const auto* codec : {"half", "int8", "topk:0.05"}) {
    for (const std::int64_t logical : {1, 2, 4}) {
      const Case test{.codec = codec, .logical_workers = logical};
      coded_cases().push_back({test, model_of(test)});
    }
  }
}

/// What differs is a failure of googletest.
void run_coded(const Group& group, const StepsOfCase& steps) {
  Draw draw(steps.seed);
  const auto& one = coded_cases()[draw.below(coded_cases().size())];
  Workers all(group, one.test);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    all.step(step, one.states[static_cast<std::size_t>(step - 1)]);
    steps.reports.chance();
  }
}

/// Of a copy of each worker's own, which moves between the averages.
void run_averaged(const Group& group, const StepsOfCase& steps) {
  constexpr std::size_t kCount = 9000;
  const auto plan = plan_of({kCount});
  const auto policy = block_momentum(1);
  Values values(kCount);
  WorkerCopies copies(group, plan, *policy, {{0}}, {reinterpret_cast<std::byte*>(values.data())},
                      steps.name);
  copies.restart();
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<std::optional<Values>> all;
    for (int r = 0; r < group.size(); ++r) {
      all.emplace_back(
          random_values(steps.seed + 100 * round + static_cast<std::uint64_t>(r), kCount));
    }
    std::memcpy(values.data(), all[static_cast<std::size_t>(group.rank())]->data(),
                kCount * sizeof(float));
    steps.reports.chance();
    copies.all_reduce(std::vector<std::uint32_t>{0}, {});
    auto mean = *fold_range(all, 0, all.size());
    for (auto& value : mean) value /= static_cast<float>(group.size());
    for (std::int64_t begin = 0; begin < static_cast<std::int64_t>(kCount); begin += kTile) {
      const auto end = std::min<std::int64_t>(begin + kTile, kCount);
      const ElementRange tile{0, begin, end};
      const auto bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
      expect(steps, std::memcmp(copies.mean(tile), mean.data() + begin, bytes) == 0,
             fmt::format("round {}: the mean from {}", round, begin));
      copies.store(tile, copies.mean(tile));
    }
  }
}

}  // namespace tutti::test::chaos
