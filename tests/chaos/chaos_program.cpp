#include "chaos/chaos_program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "chaos/chaos_steps.h"

namespace tutti::test::chaos {
namespace {

/// Elements of a collective: a few bytes, and more than goes at once.
const std::vector<std::size_t> kCounts = {0, 1, 5, 63, 1000, 20000, 150000};

class Collectives {
 public:
  Collectives(std::uint64_t seed, const Reports& reports)
      : seed_(seed), draw_(seed), reports_(reports), count_(draw_.of(kCounts)) {}

  void run(Operation operation, const Group& group) {
    const auto size = static_cast<std::size_t>(group.size());
    const auto rank = static_cast<std::size_t>(group.rank());
    switch (operation) {
      case Operation::all_reduce: {
        auto values = of(group, rank, count_);
        group.all_reduce(view(values), Reduction::sum);
        expect(values, sum(group, count_), "all-reduce");
        return;
      }
      case Operation::all_gather: {
        Values all(count_ * size), expected;
        const auto mine = of(group, rank, count_);
        group.all_gather(view(mine), view(all));
        for (std::size_t r = 0; r < size; ++r) {
          const auto part = of(group, r, count_);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        expect(all, expected, "all-gather");
        return;
      }
      case Operation::broadcast: {
        const auto root = draw_.below(size);
        auto values = of(group, rank, count_);
        group.broadcast(view(values), static_cast<int>(root));
        expect(values, of(group, root, count_), "broadcast");
        return;
      }
      case Operation::reduce_scatter: {
        const auto all = of(group, rank, count_ * size);
        Values part(count_);
        group.reduce_scatter(view(all), view(part), Reduction::sum);
        const auto whole = sum(group, count_ * size);
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(rank * count_);
        expect(part, {begin, begin + static_cast<std::ptrdiff_t>(count_)}, "reduce-scatter");
        return;
      }
      case Operation::exchange: {
        // From r to t as many as from t to r: the values of r, from the first on.
        const auto between = [&](std::size_t r, std::size_t t) {
          return static_cast<std::int64_t>(count_ * ((r + t) % 3) / 2);
        };
        std::vector<std::int64_t> counts;
        for (std::size_t r = 0; r < size; ++r) counts.push_back(between(rank, r));
        Values given, expected;
        for (std::size_t r = 0; r < size; ++r) {
          const auto n = static_cast<std::size_t>(between(rank, r));
          for (const auto& [from, to] : {std::pair{rank, &given}, std::pair{r, &expected}}) {
            const auto part = of(group, from, n);
            to->insert(to->end(), part.begin(), part.end());
          }
        }
        Values taken(given.size());
        group.all_to_all_variable(view(given), counts, view(taken), counts);
        expect(taken, expected, "all-to-all");
        return;
      }
      case Operation::rooted: {
        const auto root = static_cast<int>(draw_.below(size));
        const auto mine = of(group, rank, count_);
        Values all(group.rank() == root ? count_ * size : 0), back(count_);
        group.gather(view(mine), view(all), root);
        group.scatter(view(std::as_const(all)), view(back), root);
        expect(back, mine, "scatter of what was gathered");
        return;
      }
      case Operation::ring: {
        if (size == 1) return;
        std::vector<std::pair<int, int>> pairs;
        const auto next = [&](std::size_t r) { return static_cast<int>((r + 1) % size); };
        for (std::size_t r = 0; r < size; ++r) pairs.emplace_back(static_cast<int>(r), next(r));
        group.connect(pairs);
        const auto given = of(group, rank, count_);
        const std::size_t last = (rank + size - 1) % size;
        for (int round = 0; round < 3; ++round) {
          Values taken(count_);
          auto sent = group.start().send(view(given), next(rank));
          reports_.chance();
          group.receive(view(taken), static_cast<int>(last));
          sent.wait();
          expect(taken, of(group, last, count_), "message");
        }
        return;
      }
      case Operation::started: {
        const auto in = of(group, rank, count_);
        Values first(count_), second(count_);
        auto one = group.start().all_reduce(view(in), view(first), Reduction::sum);
        auto two = group.start().all_reduce(view(in), view(second), Reduction::sum);
        reports_.chance();
        group.barrier();
        two.wait();
        one.wait();
        expect(first, sum(group, count_), "the first that was started");
        expect(second, sum(group, count_), "the second that was started");
        return;
      }
      default: {
        const auto half = group.split(group.rank() % 2, "half");
        run(Operation::all_reduce, half);
        group.barrier();
        return;
      }
    }
  }

 private:
  static View view(Values& values) {
    return {values.data(), static_cast<std::int64_t>(values.size()), DType::float32};
  }
  static ConstView view(const Values& values) {
    return {values.data(), static_cast<std::int64_t>(values.size()), DType::float32};
  }
  Values of(const Group& group, std::size_t rank, std::size_t count) const {
    return random_values(seed_ + static_cast<std::uint64_t>(group.job_rank(static_cast<int>(rank))),
                         count);
  }
  Values sum(const Group& group, std::size_t count) const {
    std::vector<std::optional<Values>> all;
    for (int r = 0; r < group.size(); ++r) {
      all.emplace_back(of(group, static_cast<std::size_t>(r), count));
    }
    return *fold_range(all, 0, all.size());
  }
  void expect(const Values& values, const Values& expected, const char* what) const {
    if (values.size() == expected.size() &&
        (values.empty() ||
         std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)) == 0)) {
      return;
    }
    reports_.wrong(fmt::format("{} of {}", what, values.size()));
  }

  std::uint64_t seed_;
  Draw draw_;
  const Reports& reports_;
  std::size_t count_;
};

}  // namespace

const ModelStep& ModelSteps::get(std::uint64_t key, const std::function<ModelStep()>& make) {
  const std::lock_guard lock(mutex_);
  auto& step = steps_[key];
  if (!step) step = std::make_unique<ModelStep>(make());
  return *step;
}

void run_operations(const ChaosCase& one, const Job& job, ModelSteps& model,
                    const Reports& reports) {
  const Group group(job);
  for (std::size_t k = 0; k < one.operations.size(); ++k) {
    const StepsOfCase steps{one.seed_of(100 + k), fmt::format("model {}", k), model, reports};
    switch (one.operations[k]) {
      case Operation::dense:
        run_dense(group, steps);
        break;
      case Operation::large:
        run_large(group, steps);
        break;
      case Operation::backward:
        run_backward(group, steps);
        break;
      case Operation::rows:
        run_rows(group, steps);
        break;
      case Operation::coded:
        run_coded(group, steps);
        break;
      case Operation::averaged:
        run_averaged(group, steps);
        break;
      case Operation::replicas:
        run_replicas(group, steps);
        break;
      default:
        Collectives(steps.seed, reports).run(one.operations[k], group);
    }
    reports.chance();
  }
}

}  // namespace tutti::test::chaos
