// Golden runs with a DataParallel and with collectives.

#include "golden/trainer_runs.h"
#include "torch/training.h"

namespace tutti::test::golden::parallel {
namespace {

constexpr std::uint64_t kSeed = 23;
constexpr std::int64_t kSteps = 4;
constexpr std::int64_t kMicroBatches = 7;

std::string digest_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  if (tensor.is_sparse()) {
    return fmt::format("rows {}, {}", digest_of(tensor.indices()), digest_of(tensor.values()));
  }
  const auto rows = tensor.detach().contiguous();
  return short_digest(rows.data_ptr(), rows.nbytes());
}

/// p ← p − g/4, exact but for the one rounding of the difference.
void descend(const GoldenModel& model) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, parameter] : model.own_parameters()) {
    const auto gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      parameter.index_add_(0, gradient.indices()[0], gradient.values() * -0.25);
    } else {
      parameter.sub_(gradient * 0.25);
    }
  }
}

Piece piece(std::int64_t step, std::int64_t index, bool changes_buffers) {
  return {.seed = number_of(kSeed, static_cast<std::uint64_t>(step),
                            static_cast<std::uint64_t>(index), "micro-batch"),
          .index = index,
          .changes_buffers = changes_buffers};
}

/// One worker, and what it tells of each step.
class Worker {
 public:
  using Options = std::function<DataParallelOptions(int workers)>;

  Worker(const Job& job, const ModelKind& kind, const Options& options)
      : job_(job),
        options_(options(job.size())),
        model_(kind, kSeed + static_cast<std::uint64_t>(job.rank())),  // rank 0's hold
        parallel_(job, model_, options_) {}

  /// The same micro-batches on any number of workers.
  std::string accumulate() {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      model_.zero_grad();
      const auto [begin, end] = share_of(kMicroBatches, job_);
      auto scope = parallel_.accumulate({.micro_batches = end - begin});
      for (auto index = begin; index < end; ++index) {
        const double weight = index == 3 ? 0 : static_cast<double>(3 + index) / 10;
        scope.micro_batch(weight, [&] { return model_.loss(piece(step, index, false)); });
      }
      scope.finish();
      if (options_.placement == nullptr) say_gradients(step);
      end_step(step);
    }
    return text_of(lines_);
  }

  /// Each worker has a backward per step, some have fewer steps than others.
  std::string by_rank() {
    std::int64_t step = 0;
    const auto update = [&] {
      say_gradients(++step);
      end_step(step);
      model_.zero_grad();
    };
    for (std::int64_t mine = 0; mine < 3 + job_.rank(); ++mine) {
      parallel_.next_weight(static_cast<double>(3 + job_.rank()) / 10);
      model_.loss(piece(mine + 1, job_.rank(), true)).backward();
      update();
    }
    parallel_.join(update);
    for (const auto& item : model_.named_buffers()) {
      say("buffer " + item.key(), digest_of(item.value()));
    }
    say("mean", parallel_.mean(number_at(kSeed, job_.rank()), 1.0 + job_.rank()));
    return text_of(lines_);
  }

 private:
  void end_step(std::int64_t step) {
    const auto& report = parallel_.report();
    say(fmt::format("step {} report", step),
        fmt::format("leaves {}, weight {}, touched {}", report.leaves, report.weight,
                    fmt::join(touched(), " ")));
    descend(model_);
    if (options_.placement) parallel_.broadcast_placed();
    say(fmt::format("step {} parameters", step), parameters_sha256(model_));
  }

  std::vector<std::string> touched() const { return parallel_.touched(); }

  void say_gradients(std::int64_t step) {
    for (const auto& [name, parameter] : model_.own_parameters()) {
      say(fmt::format("step {} gradient {}", step, name), digest_of(parameter.grad()));
    }
  }

  template <class Value>
  void say(const std::string& name, const Value& value) {
    lines_.emplace_back(name, fmt::format("{}", value));
  }

  const Job& job_;
  DataParallelOptions options_;
  GoldenModel model_;
  DataParallel parallel_;
  Lines lines_;
};

/// One worker that trains for itself, and what it tells of each step.
class Replica {
 public:
  struct Options {
    AveragingPolicyPointer policy;
    std::int64_t fusion = kDefaultFusion;
  };

  Replica(const Job& job, const ModelKind& kind, const Options& options)
      : job_(job),
        model_(kind, kSeed + static_cast<std::uint64_t>(job.rank())),  // rank 0's hold
        parallel_(job, model_, options.policy, {.fusion = options.fusion}) {}

  /// Copies become one in every second step.
  std::string apart() {
    return steps([this](std::int64_t step) {
      if (step % 2 != 0) return;
      say(fmt::format("step {} parameters", step), parameters_sha256(model_));
      say(fmt::format("step {} became one", step),
          fmt::format("{}", fmt::join(parallel_.touched(), " ")));
    });
  }

  /// Copies stay apart.
  std::string separately() {
    return steps([this](std::int64_t step) {
      for (const auto& [name, parameter] : model_.own_parameters()) {
        const auto mine = all_gather(Group(job_), parameter.detach().reshape({-1}));
        say(fmt::format("step {} {}", step, name), digest_of(mine));
      }
    });
  }

  /// Each step has its own parameters that become one.
  std::string in_turn() {
    return steps([this](std::int64_t step) {
      for (const auto& name : parallel_.touched()) {
        say(fmt::format("step {} became one {}", step, name),
            digest_of(model_.named_parameters()[name]));
      }
    });
  }

 private:
  std::string steps(const std::function<void(std::int64_t step)>& tell) {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      model_.zero_grad();
      model_.loss(piece(step, job_.rank(), true)).backward();
      descend(model_);
      parallel_.average_parameters(step);
      tell(step);
    }
    return text_of(lines_);
  }

  void say(const std::string& name, const std::string& value) { lines_.emplace_back(name, value); }

  const Job& job_;
  GoldenModel model_;
  AveragedParallel parallel_;
  Lines lines_;
};

/// Every reduction of every type, of numbers that differ on the workers.
std::string reduce(const Job& job) {
  const Group group(job);
  Lines lines;
  for (const auto type :
       {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16, torch::kInt32}) {
    const auto sizes = {std::int64_t{77} * group.size()};
    const auto mine = (numbers(kSeed + static_cast<std::uint64_t>(job.rank()), sizes) * 8).to(type);
    for (const auto reduction :
         {Reduction::sum, Reduction::mean, Reduction::product, Reduction::max}) {
      if (!is_defined(reduction, dtype_of(mine))) continue;
      auto all = mine.clone();
      all_reduce(group, all, reduction);
      auto part = torch::empty({77}, type);
      reduce_scatter(group, mine, part, reduction);
      const auto name = fmt::format("{} of {}", name_of(reduction), c10::toString(type));
      lines.emplace_back(name, digest_of(all));
      lines.emplace_back("scattered " + name, digest_of(all_gather(group, part)));
    }
  }
  return text_of(lines);
}

Lines on_all(int workers, const std::function<std::string(const Job&)>& body) {
  return lines_of_text(text_of_rank_0(workers, [&](const Job& job) {
    const auto text = body(job);
    expect_same_everywhere(job, text);
    return text;
  }));
}

GoldenRun run_of(const char* name, bool is_per_workers, std::string (Worker::*body)(),
                 const ModelKind& kind, const Worker::Options& options) {
  return {name, is_per_workers, [=](int workers) {
            return on_all(workers,
                          [&](const Job& job) { return (Worker(job, kind, options).*body)(); });
          }};
}

GoldenRun run_apart(const char* name, std::string (Replica::*body)(), const ModelKind& kind,
                    const Replica::Options& options) {
  return {name, true, [=](int workers) {
            return on_all(workers,
                          [&](const Job& job) { return (Replica(job, kind, options).*body)(); });
          }};
}

/// The same options for any number of workers.
Worker::Options always(const DataParallelOptions& options) {
  return [options](int) { return options; };
}

DataParallelOptions with_owners(int workers) {
  return {.placement = [workers](const std::string& name) -> std::optional<std::int64_t> {
    if (name.starts_with("layer")) return workers - 1;
    if (name == "wide" || name == "table") return 0;
    return {};
  }};
}

DataParallelOptions with_codec(const CodecPointer& codec) {
  return {.compression = {.codec = codec, .fusion = 100}};
}

}  // namespace
}  // namespace tutti::test::golden::parallel

namespace tutti::test::golden {

std::vector<GoldenRun> parallel_runs() {
  using parallel::Worker;
  const ModelKind with_table{.has_double = true, .has_table = true};
  const ModelKind bfloat16{.type = torch::kBFloat16};
  DataParallelOptions rows;
  rows.row_sparse = [](const std::string& name) { return name == "table"; };
  auto contributors = rows;
  contributors.divide = Divide::by_contributors;
  const auto owners = [](int workers) {
    auto options = parallel::with_owners(workers);
    options.row_sparse = [](const std::string& name) { return name == "table"; };
    return options;
  };
  const auto in_8_bits = diloco(2, {.warm_up = 1, .int8 = true});
  using parallel::always;
  using parallel::Replica;
  using parallel::run_apart;
  using parallel::run_of;
  return {
      run_of("parallel", false, &Worker::accumulate, with_table, always(rows)),
      run_of("parallel_by_contributors", false, &Worker::accumulate, with_table,
             always(contributors)),
      run_of("parallel_sums", false, &Worker::accumulate, bfloat16,
             always({.divide = Divide::not_at_all})),
      run_of("parallel_owners", false, &Worker::accumulate, with_table, owners),
      run_of("parallel_by_rank", true, &Worker::by_rank, with_table, always(rows)),
      run_of("parallel_top_k_codec", true, &Worker::by_rank, {},
             always(parallel::with_codec(top_k_codec(0.1)))),
      run_of("parallel_half_codec", true, &Worker::by_rank, bfloat16,
             always(parallel::with_codec(half_codec()))),
      run_apart("parallel_block_momentum", &Replica::apart, {},
                {block_momentum(2, 0, {.rate = 0.75}), 100}),
      run_apart("parallel_diloco", &Replica::in_turn, bfloat16,
                {diloco(2, {.fragments = 2, .warm_up = 0})}),
      run_apart("parallel_diloco_in_8_bits", &Replica::in_turn, bfloat16, {in_8_bits}),
      run_apart("parallel_diloco_with_overlap", &Replica::separately, bfloat16,
                {diloco(2, {.warm_up = 1, .overlap = 1})}),
      {"collectives", true,
       [](int workers) { return parallel::on_all(workers, parallel::reduce); }},
  };
}

}  // namespace tutti::test::golden
