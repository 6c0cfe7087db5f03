// Operations in the models of DataParallels whose workers' losses count differently: gradients are
// those of one process that adds up all losses, each times its weight.

#include <limits>

#include "torch/training.h"
#include "tutti/ops.h"

namespace tutti::test::weighted_losses_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(torch::kFloat64);
}

torch::nn::Linear linear(int replica) {
  torch::nn::Linear model(3, 4);
  model->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  model->weight.copy_(draw(50 + static_cast<std::uint64_t>(replica), {4, 3}));
  model->bias.copy_(draw(60 + static_cast<std::uint64_t>(replica), {4}));
  return model;
}

/// Who has the same parameters, and who calls operations together, as numbers of groups by rank.
struct Grid {
  const char* name;
  int size;
  std::function<int(int rank)> replica = [](int) { return 0; };
  std::function<int(int rank)> together = [](int) { return 0; };
};

/// Some workers have no rows, and a weight of 0.
std::int64_t rows_of(int rank, int batch) {
  constexpr std::int64_t kRows[3][4] = {{2, 0, 3, 1}, {0, 3, 1, 2}, {1, 2, 0, 3}};
  return kRows[batch][rank];
}

/// An operation, and what it is where all members' values are in one process.
struct Case {
  const char* name;
  std::function<torch::Tensor(const Group& group, const torch::Tensor& rows)> op;
  std::function<Tensors(const Tensors& rows)> whole;
  /// Each worker passes on what others compute: all have rows.
  bool needs_all = false;
  std::int64_t rows(int rank, int batch) const {
    return rows_of(rank, batch) + (needs_all ? 1 : 0);
  }
  double weight(int rank, int batch) const {
    return static_cast<double>(rows(rank, batch)) * (1 + 0.5 * batch);
  }
};

torch::Tensor sums(const torch::Tensor& rows) { return rows.sum(0) + 0.1; }
Tensors on_all(const Tensors& rows, const torch::Tensor& value) {
  return Tensors(rows.size(), value);
}
Tensors at_root(const Tensors& rows, const torch::Tensor& value) {
  Tensors results(rows.size());
  results.back() = value;
  return results;
}
torch::Tensor all_sums(const Tensors& rows) {
  Tensors all;
  for (const auto& one : rows) all.push_back(sums(one));
  return torch::stack(all);
}
int root(const Group& group) { return group.size() - 1; }
/// A tensor of which each member has two rows.
torch::Tensor two_rows(const Group& group, const torch::Tensor& rows) {
  return sums(rows).repeat({2 * group.size(), 1}) *
         torch::arange(1, 1 + 2 * group.size(), torch::kFloat64).unsqueeze(1);
}

Case reduction(const char* name, Reduction how,
               const std::function<torch::Tensor(const torch::Tensor&)>& reduced) {
  return {name,
          [how](const Group& group, const torch::Tensor& rows) {
            return ops::all_reduce(group, sums(rows), how);
          },
          [reduced](const Tensors& rows) { return on_all(rows, reduced(all_sums(rows))); }};
}

std::vector<Case> cases() {
  return {
      reduction("all_reduce(sum)", Reduction::sum, [](const auto& all) { return all.sum(0); }),
      reduction("all_reduce(mean)", Reduction::mean, [](const auto& all) { return all.mean(0); }),
      reduction("all_reduce(max)", Reduction::max, [](const auto& all) { return all.amax(0); }),
      reduction("all_reduce(min)", Reduction::min, [](const auto& all) { return all.amin(0); }),
      reduction("all_reduce(product)", Reduction::product,
                [](const auto& all) { return all.prod(0); }),
      {"reduce(mean)",
       [](const Group& group, const torch::Tensor& rows) {
         return ops::reduce(group, sums(rows), Reduction::mean, root(group));
       },
       [](const Tensors& rows) { return at_root(rows, all_sums(rows).mean(0)); }},
      {"broadcast",
       [](const Group& group, const torch::Tensor& rows) {
         return ops::broadcast(group, sums(rows), root(group));
       },
       [](const Tensors& rows) { return on_all(rows, sums(rows.back())); }},
      {"reduce_scatter(sum)",
       [](const Group& group, const torch::Tensor& rows) {
         return ops::reduce_scatter(group, two_rows(group, rows), Reduction::sum);
       },
       [](const Tensors& rows) {
         Tensors results;
         for (std::size_t r = 0; r < rows.size(); ++r) {
           const auto factors = here(torch::tensor({2.0 * r + 1, 2.0 * r + 2}, torch::kFloat64));
           results.push_back(all_sums(rows).sum(0) * factors.unsqueeze(1));
         }
         return results;
       }},
      {"all_gather",
       [](const Group& group, const torch::Tensor& rows) { return ops::all_gather(group, rows); },
       [](const Tensors& rows) { return on_all(rows, torch::cat(rows)); }},
      {"gather",
       [](const Group& group, const torch::Tensor& rows) {
         return ops::gather(group, rows, root(group));
       },
       [](const Tensors& rows) { return at_root(rows, torch::cat(rows)); }},
      {"scatter",
       [](const Group& group, const torch::Tensor& rows) {
         const std::vector<std::int64_t> two(static_cast<std::size_t>(group.size()), 2);
         return ops::scatter(group, two_rows(group, rows), two, root(group));
       },
       [](const Tensors& rows) {
         Tensors results;
         for (std::size_t r = 0; r < rows.size(); ++r) {
           const auto factors = here(torch::tensor({2.0 * r + 1, 2.0 * r + 2}, torch::kFloat64));
           results.push_back(sums(rows.back()).unsqueeze(0) * factors.unsqueeze(1));
         }
         return results;
       }},
      {"all_to_all",  // each member's first row to rank 0, the others to the last
       [](const Group& group, const torch::Tensor& rows) {
         std::vector<std::int64_t> given(static_cast<std::size_t>(group.size()));
         const auto first = std::min<std::int64_t>(rows.size(0), 1);
         given.front() += first;
         given.back() += rows.size(0) - first;
         return ops::all_to_all(group, rows, given, ops::exchange_rows(group, given));
       },
       [](const Tensors& rows) {
         std::vector<Tensors> taken(rows.size());
         for (const auto& one : rows) {
           taken.front().push_back(one.slice(0, 0, 1));
           if (rows.size() > 1) taken.back().push_back(one.slice(0, 1));
         }
         if (rows.size() == 1) return rows;
         Tensors results;
         for (const auto& some : taken) {
           results.push_back(some.empty() ? rows[0].slice(0, 0, 0) : torch::cat(some));
         }
         return results;
       }},
      {"copy_to_group",
       [](const Group& group, const torch::Tensor& rows) {
         const auto own = ops::all_reduce(group, sums(rows), Reduction::mean);
         return ops::copy_to_group(group, own) * (group.rank() + 1);
       },
       [](const Tensors& rows) {
         // All have one value alike, and the gradient of each one's copy is that of all: size()
         // times what the members' own copies give.
         const auto mean = all_sums(rows).mean(0);
         const double size = static_cast<double>(rows.size());
         Tensors results;
         for (std::size_t r = 0; r < rows.size(); ++r) {
           const auto copy = mean * size - (mean * (size - 1)).detach();
           results.push_back(copy * static_cast<double>(r + 1));
         }
         return results;
       },
       /*needs_all=*/true},
      {"send and receive",  // along a chain
       [](const Group& group, const torch::Tensor& rows) {
         const auto own = sums(rows);
         torch::Tensor taken = torch::zeros_like(own);
         if (group.rank() > 0) taken = ops::receive(group, own.detach(), group.rank() - 1);
         if (group.rank() + 1 == group.size()) return taken;
         return taken + ops::send(group, own, group.rank() + 1).sum();
       },
       [](const Tensors& rows) {
         Tensors results = {torch::zeros_like(sums(rows[0]))};
         for (std::size_t r = 1; r < rows.size(); ++r) results.push_back(sums(rows[r - 1]));
         return results;
       }},
  };
}

/// Of the worker's own rows, each with all of the result: the loss of no rows has no gradient.
torch::Tensor loss_of(const torch::Tensor& own, const torch::Tensor& result, int rank) {
  const auto loss = own.square().sum() / 3;
  if (!result.defined()) return loss;
  if (result.dim() == 1 && result.numel() == 0) return ops::attach(loss, {result});
  const auto factors = draw(80 + static_cast<std::uint64_t>(rank), {4});
  const auto other = ((result + 0.3) * factors).reshape({-1, 4});
  return loss + own.matmul(other.t()).square().sum();
}

torch::Tensor input(const Case& each, int rank, int batch) {
  return draw(static_cast<std::uint64_t>(200 + 10 * batch + rank), {each.rows(rank, batch), 3});
}

/// What one process finds for the parameters of `replica`.
torch::nn::Linear of_one_process(const Grid& grid, const Case& each, int batches, int replica) {
  std::vector<torch::nn::Linear> models;
  for (int r = 0; r < grid.size; ++r) models.push_back(linear(r));
  auto total = torch::zeros({}, torch::kFloat64);
  double divisor = 0;
  for (int batch = 0; batch < batches; ++batch) {
    for (int group = 0; group < grid.size; ++group) {
      Tensors rows;
      std::vector<int> members;
      for (int r = 0; r < grid.size; ++r) {
        if (grid.together(r) != group) continue;
        members.push_back(r);
        auto& model = models[static_cast<std::size_t>(grid.replica(r))];
        rows.push_back(model->forward(input(each, r, batch)).tanh());
      }
      if (members.empty()) continue;
      const auto results = each.whole(rows);
      for (std::size_t m = 0; m < members.size(); ++m) {
        const double weight = each.weight(members[m], batch);
        if (weight > 0) total = total + weight * loss_of(rows[m], results[m], members[m]);
        if (grid.replica(members[m]) == replica) divisor += weight;
      }
    }
  }
  (total / divisor).backward();
  return models[static_cast<std::size_t>(replica)];
}

enum class Steps { single, micro_batches };

void compare(const Grid& grid, Steps steps) {
  on_workers(grid.size, [&](const Job& job) {
    const Group world(job);
    const int replica = grid.replica(job.rank());
    const Group replicas = world.split(replica, "replicas");
    const Group together = world.split(grid.together(job.rank()), "together");
    std::vector<std::pair<int, int>> chain;
    for (int r = 0; r + 1 < together.size(); ++r) chain.emplace_back(r, r + 1);
    together.connect(chain);
    auto model = linear(replica);
    DataParallel parallel(replicas, *model);
    const auto loss = [&](const Case& each, int batch) {
      const auto rows = model->forward(input(each, job.rank(), batch)).tanh();
      const auto value = loss_of(rows, each.op(together, rows), job.rank());
      // What counts nothing does so whatever it is.
      const bool counts = each.weight(job.rank(), batch) > 0;
      return counts ? value : value * std::numeric_limits<double>::quiet_NaN();
    };
    for (const auto& each : cases()) {
      const int batches = steps == Steps::single ? 1 : 3;
      model->zero_grad();
      if (steps == Steps::single) {
        parallel.next_weight(each.weight(job.rank(), 0));
        loss(each, 0).backward();
      } else {
        auto scope = parallel.accumulate({.micro_batches = batches});
        for (int batch = 0; batch < batches; ++batch) {
          scope.micro_batch(each.weight(job.rank(), batch), [&] { return loss(each, batch); });
        }
        scope.finish();
      }
      const auto right = of_one_process(grid, each, batches, replica);
      for (std::size_t p = 0; p < 2; ++p) {
        const auto gradient = model->parameters()[p].grad();
        ASSERT_TRUE(gradient.defined()) << each.name;
        EXPECT_TRUE(torch::allclose(gradient, right->parameters()[p].grad(), 1e-9, 1e-12))
            << grid.name << ", " << each.name << ", rank " << job.rank() << ": "
            << gradient.flatten()[0].item<double>() << " for "
            << right->parameters()[p].grad().flatten()[0].item<double>();
      }
    }
  });
}

const std::vector<Grid>& grids() {
  static const std::vector<Grid> all = {
      {.name = "one worker", .size = 1},
      {.name = "two workers", .size = 2},
      {.name = "three workers", .size = 3},
      {.name = "operations in parts of the DataParallel's group",
       .size = 4,
       .together = [](int rank) { return rank / 2; }},
      {.name = "a grid of 2 by 2",
       .size = 4,
       .replica = [](int rank) { return rank % 2; },
       .together = [](int rank) { return rank / 2; }},
      {.name = "a DataParallel of one worker in each group",
       .size = 3,
       .replica = [](int rank) { return rank; }},
  };
  return all;
}

// findings-3: B2
TEST(WeightedLosses, EachOperationHasTheGradientsOfOneProcess) {
  for (const auto& grid : grids()) {
    if (grid.replica(1) == 1 && grid.size == 3) continue;  // who is alone has to have a weight
    compare(grid, Steps::single);
  }
}

// findings-3: B2
TEST(WeightedLosses, InMicroBatchesToo) {
  for (const auto& grid : grids()) compare(grid, Steps::micro_batches);
}

// findings-3: B2
TEST(WeightedLosses, WorkersThatAreEachAloneInTheirDataParallelCountByTheirWeights) {
  on_workers(3, [](const Job& job) {
    const Group world(job);
    const Group alone = world.split(job.rank(), "alone");
    auto model = linear(job.rank());
    DataParallel parallel(alone, *model);
    const double weight = job.rank() + 1;
    const auto sum_of = [](const torch::Tensor& rows, int factor) {
      return (rows * factor).square().sum();
    };
    parallel.next_weight(weight);
    const auto rows = model->forward(draw(9, {2, 3}));
    sum_of(ops::all_reduce(world, rows, Reduction::sum), job.rank() + 1).backward();
    std::vector<torch::nn::Linear> models;
    torch::Tensor all = torch::zeros({2, 4}, torch::kFloat64);
    for (int r = 0; r < 3; ++r) {
      models.push_back(linear(r));
      all = all + models.back()->forward(draw(9, {2, 3}));
    }
    auto total = torch::zeros({}, torch::kFloat64);
    for (int r = 0; r < 3; ++r) total = total + (r + 1) * sum_of(all, r + 1);
    (total / weight).backward();
    const auto& right = models[static_cast<std::size_t>(job.rank())]->weight.grad();
    EXPECT_TRUE(torch::allclose(model->weight.grad(), right, 1e-9, 1e-12));
  });
}

// findings-3: B2
TEST(WeightedLosses, BackwardsThatReachNoParameterOfADataParallelAreAsEver) {
  on_workers(3, [](const Job& job) {
    const Group group(job);
    auto model = linear(0);
    DataParallel parallel(group, *model);
    parallel.next_weight(job.rank() + 1);
    auto x = draw(3, {5}).requires_grad_();
    (ops::all_reduce(group, x, Reduction::sum) * (job.rank() + 1)).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({5}, 6, torch::kFloat64)));
    // The weight is still that of the next step.
    model->forward(draw(4, {2, 3})).sum().backward();
    EXPECT_EQ(parallel.report().weight, 6);
  });
}

TEST(WeightedLosses, ABackwardForOtherTensorsAloneReachesNoParameter) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      auto model = linear(0);
      DataParallel parallel(group, *model);
      const auto x = draw(3, {2, 3}).requires_grad_();
      const auto loss = [&] {
        return ops::all_gather(group, model->forward(x)).square().sum() * (job.rank() + 1);
      };
      const auto without = torch::autograd::grad({loss()}, {x})[0];
      parallel.next_weight(job.rank() + 2);
      EXPECT_TRUE(torch::equal(torch::autograd::grad({loss()}, {x})[0], without));
      loss().backward();
      EXPECT_EQ(parallel.report().weight, job.size() * (job.size() + 3) / 2);
    });
  }
}

// findings-3: B2
TEST(WeightedLosses, AMeanThatAllComputeIsThatOfAllRowsWithAnyWeights) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      const auto rows_here = [](int rank) { return rows_of(rank, 0); };  // 2, none, 3
      const auto loss_of_rows = [](torch::nn::Linear& model, int rank) {
        const auto x = draw(30 + static_cast<std::uint64_t>(rank), {rows_of(rank, 0), 3});
        return model->forward(x).tanh().square().sum(1);
      };
      auto whole = linear(0);
      torch::Tensor all;
      for (int r = 0; r < job.size(); ++r) {
        const auto more = loss_of_rows(whole, r);
        all = r == 0 ? more : torch::cat({all, more});
      }
      all.mean().backward();
      auto model = linear(0);
      DataParallel parallel(group, *model);
      for (const bool weighs : {false, true}) {
        const auto rows = static_cast<double>(rows_here(job.rank()));
        model->zero_grad();
        if (weighs) parallel.next_weight(rows);
        // NaN where there are no rows.
        auto mean = partial_mean(group, loss_of_rows(model, job.rank()).mean(), rows).reduce();
        mean.backward();
        EXPECT_TRUE(torch::allclose(model->weight.grad(), whole->weight.grad(), 1e-9, 1e-12));
      }
    });
  }
}

// findings-3: B2
TEST(WeightedLosses, InARecomputedSegmentToo) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      const Group group(job);
      auto model = linear(0);
      DataParallel parallel(group, *model);
      const double weight = 2.0 * job.rank() + 1;
      const auto loss = [&](bool recomputed) {
        const auto rows = model->forward(draw(5 + static_cast<std::uint64_t>(job.rank()), {2, 3}));
        const auto segment = [&](const torch::Tensor& x) {
          return ops::all_gather(group, x.sin()).square();
        };
        const auto all = recomputed ? recompute(segment, rows) : segment(rows);
        return (all * (job.rank() + 1)).mean();
      };
      std::vector<torch::Tensor> gradients;
      for (const bool recomputed : {false, true}) {
        model->zero_grad();
        parallel.next_weight(weight);
        loss(recomputed).backward();
        gradients.push_back(model->weight.grad().clone());
      }
      EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
    });
  }
}

// findings-3: B2
TEST(WeightedLosses, OneBackwardThroughModelsOfDifferentWeightsIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto one = linear(0);
    auto other = linear(1);
    DataParallel first(group, *one, {.name = "one"});
    DataParallel second(group, *other, {.name = "other"});
    const auto loss = [&] {
      const auto rows = one->forward(draw(6, {2, 3})) + other->forward(draw(7, {2, 3}));
      return ops::all_gather(group, rows).sum();
    };
    first.next_weight(3);
    EXPECT_THAT(text_of<InvalidArgument>([&] { loss().backward(); }),
                AllOf(HasSubstr("\"one\""), HasSubstr("\"other\""), HasSubstr("next_weight()")));
  });
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto one = linear(0);
    auto other = linear(1);
    DataParallel first(group, *one, {.name = "one"});
    DataParallel second(group, *other, {.name = "other"});
    first.next_weight(3 + job.rank());
    second.next_weight(3 + job.rank());
    const auto rows = one->forward(draw(6, {2, 3})) + other->forward(draw(7, {2, 3}));
    ops::all_gather(group, rows).sum().backward();
    EXPECT_EQ(first.report().weight, 7);
    EXPECT_EQ(second.report().weight, 7);
  });
}

// findings-3: B2
TEST(WeightedLosses, AGradientThatAWorkerOfNoWeightWouldLoseIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto model = linear(0);
    DataParallel parallel(group, *model);
    const auto remedy = HasSubstr("multiply each worker's loss by its rows · N ÷ all rows");
    const auto step = [&](const std::string& what, const std::function<torch::Tensor()>& loss) {
      model->zero_grad();
      parallel.next_weight(job.rank());
      const auto run = [&] { loss().backward(); };
      if (job.rank() == 0) {
        EXPECT_THAT(text_of<InvalidArgument>(run),
                    AllOf(HasSubstr("weight of 0"), HasSubstr(what), remedy));
      } else {
        EXPECT_THAT(text_of<PeerFailed>(run), AllOf(HasSubstr("weight of 0"), HasSubstr(what)));
      }
    };
    const auto rows = [&] { return model->forward(draw(8, {2, 3})); };
    // Its own rows, which others' losses look at.
    step("all_gather", [&] {
      return ops::attach(rows().sum() * job.rank(), {}) +
             (ops::all_gather(group, rows()) * job.rank()).square().sum();
    });
    // Its loss has other terms than those of its rows.
    step("all_reduce",
         [&] { return ops::all_reduce(group, rows(), Reduction::mean).square().sum(); });
    // It passes on what the other one has for it.
    step("all_to_all", [&] {
      const std::vector<std::int64_t> to_first = {job.rank() == 1 ? 2 : 0, 0};
      const std::vector<std::int64_t> from_second = {0, job.rank() == 0 ? 2 : 0};
      const auto own = job.rank() == 1 ? rows() : rows().slice(0, 0, 0);
      const auto expert = ops::all_to_all(group, own, to_first, from_second).tanh();
      const auto back = ops::all_to_all(group, expert, from_second, to_first);
      return back.square().sum();
    });
    // The next step is right.
    model->zero_grad();
    parallel.next_weight(1 + job.rank());
    ops::all_gather(group, rows()).sum().backward();
    EXPECT_EQ(parallel.report().weight, 3);
  });
}

// findings-3: B2
TEST(WeightedLosses, AWeightThatComesAfterTheBackwardIsRefused) {
  on_workers(2, [](const Job& job) {
    const Group group(job);
    auto model = linear(0);
    DataParallel parallel(group, *model);
    const auto by_hand = [&] {
      model->zero_grad();
      const auto loss = ops::all_gather(group, model->forward(draw(8, {2, 3}))).square().mean();
      const auto gradients = torch::autograd::grad({loss}, model->parameters());
      for (std::size_t p = 0; p < 2; ++p) model->parameters()[p].mutable_grad() = gradients[p];
    };
    by_hand();
    EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.synchronize(5 + job.rank()); }),
                AllOf(HasSubstr("next_weight()"), HasSubstr("before")));
    by_hand();
    parallel.synchronize(1);
    parallel.next_weight(5 + job.rank());
    by_hand();
    parallel.synchronize();
    EXPECT_EQ(parallel.report().weight, 11);
  });
}

/// Nothing travels: what a loss is to count may be said afterwards.
TEST(WeightedLosses, RecomputationIsNoOperation) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      auto model = linear(0);
      DataParallel parallel(job, *model);
      const auto loss =
          recompute([&](const torch::Tensor& x) { return model->forward(x); },
                    draw(70 + static_cast<std::uint64_t>(job.rank()), {2, 3}).requires_grad_())
              .square()
              .mean();
      const auto gradients = torch::autograd::grad({loss}, model->parameters());
      for (std::size_t p = 0; p < gradients.size(); ++p) {
        model->parameters()[p].mutable_grad() = gradients[p].clone();
      }
      parallel.synchronize(5);
      EXPECT_EQ(parallel.report().weight, 5 * workers);
    });
  }
}

}  // namespace
}  // namespace tutti::test::weighted_losses_cases
