// A random case with a DataParallel whose micro-batches are the same for any number of workers; and
// what both kinds of runs begin with.

#include <fstream>

#include "exactness/random_options.h"
#include "exactness/random_pieces.h"

namespace tutti::test::exact {
namespace {

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& name,
                                                      std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;
  if (name == "momentum") {
    return std::make_unique<SGD>(std::move(parameters),
                                 SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  }
  if (name == "adam")
    return std::make_unique<torch::optim::Adam>(std::move(parameters), AdamOptions(1e-2));
  if (name == "adamw")
    return std::make_unique<torch::optim::AdamW>(std::move(parameters), AdamWOptions(1e-2));
  if (name == "adagrad")
    return std::make_unique<torch::optim::Adagrad>(std::move(parameters), AdagradOptions(1e-2));
  if (name == "rmsprop")
    return std::make_unique<RMSprop>(std::move(parameters), RMSpropOptions(1e-2));
  return std::make_unique<SGD>(std::move(parameters), SGDOptions(0.1));
}

class RandomParallel {
 public:
  RandomParallel(const Choices& one, const Job& job, const Stretch& stretch,
                 const std::string& folder)
      : one_(one), job_(job), stretch_(stretch), folder_(folder), pieces_(one) {}

  Transcript run() {
    torch::manual_seed(pieces_.seed() + static_cast<std::uint64_t>(job_.rank()));
    task_ = task_of(one_);
    for (const auto& item : task_.module->named_parameters()) parameters_.push_back(item.value());
    optimizer_ = optimizer_of(one_["torch-rule"], parameters_);
    if (stretch_.begin > 0) load();
    parallel_.emplace(job_, *task_.module, options());
    for (auto step = stretch_.begin + 1; step <= stretch_.end; ++step) train_step(step);
    if (!stretch_.is_last && job_.rank() == 0) save();
    return std::move(out_);
  }

 private:
  DataParallelOptions options() const {
    DataParallelOptions options;
    options.divide = divide_of(one_);
    if (one_.is("model", "tables")) {
      options.row_sparse = [](const std::string& name) { return name == "own_weight"; };
    }
    options.first_step = first_step_;
    if (stretch_.is_reference) return options;
    if (one_.is("bucket", "small")) options.fusion = options.first_fusion = 50;
    options.desync_check_every = one_.number("digests");
    if (one_.is("rank-owner", "some")) {
      options.placement =
          [size = job_.size()](const std::string& name) -> std::optional<std::int64_t> {
        const auto drawn = number_of(0, 0, 0, name);
        if (drawn % 2 == 0) return {};
        return static_cast<std::int64_t>(drawn / 2 % static_cast<std::uint64_t>(size));
      };
    }
    return options;
  }

  /// Micro-batches [first, second) are this worker's.
  std::pair<std::int64_t, std::int64_t> share(std::int64_t step) const {
    const auto all = one_.number("shards");
    if (one_.is("cuts", "even") || stretch_.is_reference) return share_of(all, job_);
    std::vector<std::int64_t> cuts = {0, all};
    for (int rank = 1; rank < job_.size(); ++rank) {
      cuts.push_back(static_cast<std::int64_t>(pieces_.pick(step, rank, "cut") %
                                               static_cast<std::uint64_t>(all + 1)));
    }
    std::sort(cuts.begin(), cuts.end());
    const auto rank = static_cast<std::size_t>(job_.rank());
    return {cuts[rank], cuts[rank + 1]};
  }

  void train_step(std::int64_t step) {
    pieces_.idle(job_, step);
    for (int attempt = 0;; ++attempt) {
      optimizer_->zero_grad();
      try {
        accumulate(step);
        break;
      } catch (const PlannedFailure&) {
        if (attempt == 3) throw;
      } catch (const PeerFailed&) {
        if (attempt == 3 || one_.is("throw", "none")) throw;
      }
    }
    const auto& report = parallel_->report();
    out_.push_back(fmt::format("step {} report: {} micro-batches of weight {}, touched {}", step,
                               report.leaves, text_of(report.weight),
                               fmt::join(parallel_->touched(), " ")));
    if (one_.is("rank-owner", "none")) {
      for (const auto& item : task_.module->named_parameters()) {
        out_.push_back(
            fmt::format("step {} gradient {}: {}", step, item.key(), hash_of(item.value().grad())));
      }
    }
    if (one_.is("clip", "norm")) torch::nn::utils::clip_grad_norm_(touched(), 0.05);
    optimizer_->step();
    if (!stretch_.is_reference && one_.is("rank-owner", "some")) parallel_->broadcast_placed();
    add_tensors(out_, step, *task_.module);
    out_.push_back(fmt::format("step {} state: {}", step, parameters_sha256(*task_.module)));
  }

  /// clip_grad_norm_ of sparse gradients is more than libtorch has.
  std::vector<torch::Tensor> touched() const {
    std::vector<torch::Tensor> dense;
    for (const auto& parameter : parameters_) {
      if (parameter.grad().defined() && !parameter.grad().is_sparse()) dense.push_back(parameter);
    }
    return dense;
  }

  void accumulate(std::int64_t step) {
    const auto [begin, end] = share(step);
    AccumulateOptions options;
    if (one_.is("told", "yes")) options.micro_batches = end - begin;
    if (one_.has("dropout") || one_.is("data", "generator")) options.seed = pieces_.seed();
    auto scope = parallel_->accumulate(options);
    for (auto index = begin; index < end; ++index) {
      const double weight =
          pieces_.is_gap(step, index) && index > 0 ? 0 : pieces_.weight(step, index);
      scope.micro_batch(weight, [&] { return compute(step, index); });
    }
    scope.finish();
  }

  torch::Tensor compute(std::int64_t step, std::int64_t index) {
    if (pieces_.throws(step, index, "before")) throw PlannedFailure();
    const auto loss = task_.loss(pieces_.piece(step, index));
    if (pieces_.throws(step, index, "after")) throw PlannedFailure();
    if (one_.is("backwards", "two")) task_.loss(pieces_.piece(step, index + 100)).backward();
    return loss;
  }

  void save() const {
    torch::save(parameters_, folder_ + "/parameters.pt");
    torch::save(*optimizer_, folder_ + "/optimizer.pt");
    // Dropped ones count; a stretch may have none.
    const auto next = std::max(parallel_->report().step + 1, first_step_);
    std::ofstream(folder_ + "/first_step") << next;
  }

  void load() {
    std::vector<torch::Tensor> saved;
    torch::load(saved, folder_ + "/parameters.pt");
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < saved.size(); ++p) parameters_[p].copy_(saved[p]);
    torch::load(*optimizer_, folder_ + "/optimizer.pt");
    std::ifstream(folder_ + "/first_step") >> first_step_;
  }

  const Choices& one_;
  const Job& job_;
  const Stretch& stretch_;
  const std::string& folder_;
  Pieces pieces_;
  RandomTask task_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<DataParallel> parallel_;
  std::int64_t first_step_ = 1;
  Transcript out_;
};

}  // namespace

Transcript train_with_parallel(const Choices& one, const Job& job, const Stretch& stretch,
                               const std::string& folder) {
  return RandomParallel(one, job, stretch, folder).run();
}

Transcript train_random(const Choices& one, const Job& job, const Stretch& stretch,
                        const std::string& folder) {
  at::set_num_threads(1);
  const auto train = one.is("front", "trainer") ? train_with_trainer : train_with_parallel;
  return train(one, job, stretch, folder);
}

void warm_up_torch() {
  at::set_num_threads(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Tanh());
  net->forward(torch::randn({4, 8})).square().mean().backward();
}

std::string log_of(const Stretch& stretch, const std::string& folder) {
  return folder + (stretch.is_reference ? "/reference.jsonl" : "/variant.jsonl");
}

}  // namespace tutti::test::exact
