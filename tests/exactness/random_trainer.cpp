// A random case with a Trainer.

#include "exactness/random_options.h"
#include "exactness/random_pieces.h"
#include "torch/trainer/trainer_state.h"

namespace tutti::test::exact {
namespace {

/// What the program keeps with the run, of each type: it belongs to the steps that count.
class KeptOnes {
 public:
  void bind(Trainer& trainer) {
    trainer.keep("best loss", best_);
    trainer.keep("applied", applied_);
    trainer.keep("outcomes", outcomes_);
    trainer.keep("mean losses", losses_);
  }
  void update(const StepResult& result) {
    if (result.applied) ++applied_;
    outcomes_ += result.applied ? "a" : "d";
    if (!std::isfinite(result.loss)) return;
    best_ = std::min(best_, result.loss);
    losses_ = torch::cat({losses_ * 0.5, torch::full({1}, result.loss, torch::kFloat64)});
  }
  std::string text() const {
    return fmt::format("{} {} {} {}", text_of(best_), applied_, outcomes_, hash_of(losses_));
  }

 private:
  double best_ = 1e300;
  std::int64_t applied_ = 0;
  std::string outcomes_;
  torch::Tensor losses_ = torch::zeros({0}, torch::kFloat64);
};

class RandomTrainer {
 public:
  RandomTrainer(const Choices& one, const Job& job, const Stretch& stretch,
                const std::string& folder)
      : one_(one), job_(job), stretch_(stretch), folder_(folder), pieces_(one) {}

  Transcript run() {
    torch::manual_seed(pieces_.seed() + static_cast<std::uint64_t>(job_.rank()));
    task_ = task_of(one_);  // rank 0's parameters hold
    std::vector<std::int64_t> ends = {stretch_.end};
    const auto remake = one_.number("remake");
    if (!stretch_.is_reference && remake > stretch_.begin && remake < stretch_.end) {
      ends.insert(ends.begin(), remake);
    }
    for (auto begin = stretch_.begin; const auto end : ends) {
      try {
        trainer_.emplace(job_, *task_.module, optimizer_of(one_),
                         options_of(one_, stretch_, task_, folder_));
      } catch (const InvalidArgument& error) {
        return {std::string(kRefused) + error.what()};
      } catch (const Unsupported& error) {
        return {std::string(kRefused) + error.what()};
      }
      if (one_.has("keep")) kept_.bind(*trainer_);
      if (begin > 0) trainer_->load(folder_ + "/run");
      if (trainer_->steps() != begin) throw std::runtime_error("the checkpoint has another step");
      while (trainer_->steps() < end) train_step();
      const bool goes_on = end < stretch_.end || !stretch_.is_last;
      if (goes_on) trainer_->save(folder_ + "/run", {.keep = 1});
      if (goes_on && one_.has("beyond")) {
        auto lines = std::exchange(out_, {});  // steps that the run goes back on
        train_step();
        out_ = std::move(lines);
      }
      begin = end;
      trainer_.reset();
    }
    return std::move(out_);
  }

 private:
  void train_step() {
    const auto step = trainer_->steps() + 1;
    pieces_.idle(job_, step);
    const bool looks = one_.has("gradients");
    const bool in_halves =
        looks || (!stretch_.is_reference &&
                  (one_.is("halves", "all") || (one_.is("halves", "some") && step % 2 == 0)));
    StepResult result;
    for (int attempt = 0;; ++attempt) {
      try {
        result = in_halves ? step_in_halves(looks) : whole_step();
        break;
      } catch (const PlannedFailure&) {
        if (attempt == 3) throw;
      } catch (const PeerFailed&) {
        if (attempt == 3 || one_.is("throw", "none")) throw;
      }
    }
    note(result);
    if (one_.has("keep")) {
      kept_.update(result);
      note("kept", step, kept_.text());
      note("state with what is kept", step, trainer_->state_sha256());
    }
    after(step);
  }

  bool is_staged() const { return !stretch_.is_reference && one_.number("stages") > 0; }

  StepResult whole_step() {
    return is_staged() ? trainer_->step(inputs(), loss()) : trainer_->step(closure());
  }

  StepResult step_in_halves(bool looks) {
    if (is_staged()) {
      trainer_->accumulate(inputs(), loss());
    } else {
      trainer_->accumulate(closure());
    }
    Transcript seen;
    if (looks) {
      const auto step = trainer_->steps() + 1;
      seen.push_back(fmt::format("step {} norm between the halves: {}", step,
                                 text_of(trainer_->gradient_norm())));
      for (const auto& item : task_.module->named_parameters()) {
        seen.push_back(fmt::format("step {} gradient {}: {}", step, item.key(),
                                   hash_of(trainer_->gradient(item.key()))));
      }
    }
    const auto result = trainer_->apply();
    // Gradients of a step that is dropped are NaN, of any kind.
    if (result.applied && result.dropped_locally.empty()) {
      out_.insert(out_.end(), seen.begin(), seen.end());
    }
    return result;
  }

  Trainer::Compute closure() {
    return [this](Shard& shard) { return answer_of(shard); };
  }

  Trainer::Inputs inputs() {
    return [this](Shard& shard) -> TensorList {
      const auto piece = piece_of(shard);
      return piece ? TensorList{task_.input(*piece)} : TensorList{};
    };
  }

  Trainer::Loss loss() {
    return [this](Shard& shard, const TensorList& y) {
      return answer_of(shard, task_.loss_of(y.at(0)));
    };
  }

  ShardAnswer answer_of(Shard& shard) {
    const auto piece = piece_of(shard);
    return piece ? answer_of(shard, task_.loss(*piece)) : shard.nothing();
  }

  /// A failure that is planned is the shard's own.
  bool throws(const Shard& shard, const char* where) {
    return !stretch_.is_reference && !shard.is_audit() &&
           pieces_.throws(shard.step(), shard.index(), where);
  }

  std::optional<RandomPiece> piece_of(Shard& shard) {
    if (throws(shard, "before")) throw PlannedFailure();
    auto piece = pieces_.piece(shard.step(), shard.index());
    if (one_.is("data", "indices")) {
      const auto samples = shard.indices(one_.number("samples"), one_.number("rows"));
      if (samples.empty()) return {};
      piece.rows = static_cast<std::int64_t>(samples.size());
      for (const auto sample : samples) {
        piece.seed = number_of(piece.seed, static_cast<std::uint64_t>(sample), 0, "sample");
      }
    }
    if (pieces_.is_gap(shard.step(), shard.index())) return {};
    if (one_.has("carry")) {
      piece.state = [&shard](const std::string& name, const torch::Tensor& init) {
        return shard.state(name, [&] { return init; });
      };
    }
    return piece;
  }

  ShardAnswer answer_of(Shard& shard, const torch::Tensor& of_model) {
    const auto step = shard.step();
    const auto index = shard.index();
    const auto loss = pieces_.with_fault(of_model, step, index);
    if (one_.has("metrics")) record(shard.metrics(), step, index);
    if (throws(shard, "after")) throw PlannedFailure();
    const auto weight = pieces_.weight(step, index);
    if (one_.is("answer", "gradients")) return gradients_of(shard, loss, weight);
    if (weight > 0 && throws(shard, "backward")) {
      loss.register_hook([](const torch::Tensor&) { throw PlannedFailure(); });
    }
    return shard.loss(loss, weight);
  }

  ShardAnswer gradients_of(Shard& shard, const torch::Tensor& loss, double weight) const {
    std::vector<torch::Tensor> parameters;
    for (const auto& item : task_.module->named_parameters()) parameters.push_back(item.value());
    return shard.gradients(
        torch::autograd::grad({loss}, parameters, {}, std::nullopt, false, /*allow_unused=*/true),
        weight);
  }

  void record(ShardMetrics& metrics, std::int64_t step, std::int64_t index) const {
    const auto drawn = pieces_.pick(step, index, "metric");
    const double value = static_cast<double>(drawn % 1000) / 7;
    metrics.sum("sum", value);
    metrics.mean("mean", value);
    metrics.weighted_mean("weighted mean", value, static_cast<double>(drawn % 5));
    metrics.max("max", value);
    if (drawn % 2 == 0) metrics.min("min", value);
    metrics.product("product", value);
    metrics.any("any", drawn % 3 == 0);
    metrics.all("all", drawn % 3 != 0);
    metrics.gather("gathered", value);
  }

  void note(const std::string& name, std::int64_t step, const std::string& value) {
    out_.push_back(fmt::format("step {} {}: {}", step, name, value));
  }

  void note_metrics(std::int64_t step, const std::string& of, const Metrics& metrics) {
    for (const auto& metric : metrics) {
      auto text = text_of(metric.value);
      for (const double value : metric.values) text += " " + text_of(value);
      note(of + metric.name, step, fmt::format("{} of {}", text, metric.shards));
    }
  }

  void note(const StepResult& result) {
    const auto step = result.step;
    note("outcome", step,
         fmt::format("{} {} [{}]", result.applied ? "applied" : "dropped", result.dropped_because,
                     fmt::join(result.dropped_locally, " ")));
    note("figures", step,
         fmt::format("loss {} weight {} of {}, norm {}, rate {}, scale {}", text_of(result.loss),
                     text_of(result.weight), result.shards,
                     result.gradient_norm ? text_of(*result.gradient_norm) : "none",
                     text_of(result.rate_factor), text_of(result.loss_scale)));
    note_metrics(step, "metric ", result.metrics);
    add_tensors(out_, step, *task_.module);
    note("state", step, trainer_->state_sha256());
    note("generator", step, hash_of(torch::rand({2})));
  }

  /// What a program does between two steps.
  void after(std::int64_t step) {
    const bool rebuilds =
        one_.is("rebuild", "all") || (one_.is("rebuild", "some") && step % 2 == 1);
    if (rebuilds && !stretch_.is_reference) TrainerState::of(*trainer_).rebuild();
    if (rebuilds) add_tensors(out_, step, *task_.module);
    if (!one_.is("edit", "none") && step == one_.number("edit-step")) edit();
    if (one_.has("evaluate") && step % 2 == 0) {
      const auto metrics =
          trainer_->evaluate(one_.number("samples"), one_.number("rows"),
                             [&](const std::vector<std::int64_t>& samples, ShardMetrics& found) {
                               auto piece = pieces_.piece(0, samples.front());
                               piece.rows = static_cast<std::int64_t>(samples.size());
                               found.weighted_mean("loss", task_.loss(piece).item<double>(),
                                                   static_cast<double>(samples.size()));
                             });
      note_metrics(step, "evaluated ", metrics);
    }
    if (!one_.is("average", "none")) look_at_averages(step);
    const bool has_copies = !one_.is("per-replica", "none") || !one_.is("averaging", "none");
    if (!has_copies) return;
    for (const auto& item : task_.module->named_parameters()) {
      note("all of " + item.key(), step, hash_of(trainer_->gather(item.key())));
    }
    const auto last = one_.number("logical") - 1;
    trainer_->with_logical_worker(
        last, [&] { note("last logical worker", step, parameters_sha256(*task_.module)); });
  }

  void look_at_averages(std::int64_t step) {
    try {
      trainer_->with_ema([&] { note("averages", step, parameters_sha256(*task_.module)); });
    } catch (const InvalidArgument&) {
      note("averages", step, "none yet");
    }
  }

  void edit() {
    trainer_->edit([&] {
      const torch::NoGradGuard no_grad;
      if (one_.is("edit", "parameters")) task_.module->parameters().front().mul_(0.75);
      for (auto& buffer : task_.module->buffers()) {
        if (one_.is("edit", "buffers")) buffer.add_(1);
      }
    });
    note("state after the edit", trainer_->steps(), trainer_->state_sha256());
  }

  const Choices& one_;
  const Job& job_;
  const Stretch& stretch_;
  const std::string& folder_;
  Pieces pieces_;
  RandomTask task_;
  KeptOnes kept_;  ///< outlives the Trainer
  std::optional<Trainer> trainer_;
  Transcript out_;
};

}  // namespace

Transcript train_with_trainer(const Choices& one, const Job& job, const Stretch& stretch,
                              const std::string& folder) {
  return RandomTrainer(one, job, stretch, folder).run();
}

}  // namespace tutti::test::exact
