// Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) learns to balance a pole on
// a cart (Barto, Sutton and Anderson 1983). Each shard plays poles of its own, by its own random
// numbers: the episodes do not depend on the number of workers. A round is kPasses steps over the
// same moves: the first collects them, and the shard keeps them as its state for the others.
//
//   build/bin/tutti run -n 2 build/bin/ppo [ROUNDS]

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "tutti/tutti.h"

namespace {

constexpr std::int64_t kShards = 6;
constexpr std::int64_t kPoles = 16;   // of a shard, side by side
constexpr std::int64_t kMoves = 64;   // of each pole in a round
constexpr std::int64_t kPasses = 10;  // steps of a round
constexpr double kLongest = 200;      // moves of an episode
constexpr double kDiscount = 0.99;    // γ
constexpr double kTrace = 0.95;       // λ of the advantages' estimator
constexpr double kClip = 0.2;         // ε of the surrogate
constexpr double kEntropyBonus = 0.01;

/// Carts with poles, a row each: position, velocity, angle, angular velocity, moves so far.
namespace cart_pole {

torch::Tensor begin(std::int64_t poles) {
  return torch::cat({torch::rand({poles, 4}) * 0.1 - 0.05, torch::zeros({poles, 1})}, 1);
}

/// One move of 0.02 s; `right` [poles] is 1 where the cart is pushed to the right, else 0.
torch::Tensor move(const torch::Tensor& poles, const torch::Tensor& right) {
  constexpr double kGravity = 9.8, kPole = 0.1, kBoth = 1.1, kHalfLength = 0.5, kSeconds = 0.02;
  const auto s = poles.unbind(1);
  const auto &x = s[0], &velocity = s[1], &angle = s[2], &turning = s[3];
  const auto sine = angle.sin(), cosine = angle.cos();
  const auto push = (right * 20 - 10 + kPole * kHalfLength * turning.square() * sine) / kBoth;
  const auto turn = (kGravity * sine - cosine * push) /
                    (kHalfLength * (4.0 / 3 - kPole * cosine.square() / kBoth));
  const auto acceleration = push - kPole * kHalfLength * turn * cosine / kBoth;
  return torch::stack({x + kSeconds * velocity, velocity + kSeconds * acceleration,
                       angle + kSeconds * turning, turning + kSeconds * turn, s[4] + 1},
                      1);
}

/// 1 where the pole is 12° or the cart 2.4 off the middle, else 0.
torch::Tensor fallen(const torch::Tensor& poles) {
  return ((poles.select(1, 0).abs() > 2.4) |
          (poles.select(1, 2).abs() > 12 * std::numbers::pi / 180))
      .to(torch::kFloat32);
}

}  // namespace cart_pole

struct ActorCritic : torch::nn::Module {
  static torch::nn::Sequential network() {
    return torch::nn::Sequential(torch::nn::Linear(4, 64), torch::nn::Tanh(),
                                 torch::nn::Linear(64, 64), torch::nn::Tanh(),
                                 torch::nn::Linear(64, 1));
  }
  /// The log odds of a push to the right.
  torch::Tensor odds(const torch::Tensor& poles) {
    return actor->forward(poles.slice(-1, 0, 4)).squeeze(-1);
  }
  /// The discounted sum of rewards to come; a move's reward is 1 − γ, so that it is below 1.
  torch::Tensor value(const torch::Tensor& poles) {
    return critic->forward(poles.slice(-1, 0, 4)).squeeze(-1);
  }

  torch::nn::Sequential actor = register_module("actor", network());
  torch::nn::Sequential critic = register_module("critic", network());
};

torch::Tensor log_probability(const torch::Tensor& odds, const torch::Tensor& right) {
  return torch::log_sigmoid(odds * (right * 2 - 1));
}

/// What the passes of a round learn from, [kMoves, kPoles, …].
struct Moves {
  explicit Moves(tutti::Shard& shard)
      : poles(kept(shard, "poles", {kMoves, kPoles, 5})),
        right(kept(shard, "right", {kMoves, kPoles})),
        log_before(kept(shard, "log_before", {kMoves, kPoles})),
        advantage(kept(shard, "advantage", {kMoves, kPoles})),
        returns(kept(shard, "returns", {kMoves, kPoles})) {}
  static torch::Tensor kept(tutti::Shard& shard, const char* name, std::vector<std::int64_t> n) {
    return shard.state(name, [&] { return torch::zeros(n); });
  }

  torch::Tensor poles, right;
  torch::Tensor log_before;  ///< of the policy that made the moves
  torch::Tensor advantage, returns;
};

/// Generalised advantage estimation (Schulman et al. 2016, equation 16) over moves [kMoves, kPoles]
/// from the surplus of each; nothing is carried over an episode's end.
torch::Tensor advantages(const torch::Tensor& surplus, const torch::Tensor& ended) {
  auto all = torch::empty_like(surplus);
  auto later = torch::zeros({kPoles});
  for (auto t = kMoves - 1; t >= 0; --t) {
    later = surplus[t] + kDiscount * kTrace * (1 - ended[t]) * later;
    all[t] = later;
  }
  return all;
}

/// Plays on where the shard's poles stand, with the policy as it is.
void collect(tutti::Shard& shard, ActorCritic& model, Moves& moves) {
  const torch::NoGradGuard no_grad;
  const auto kept = shard.state("now", [] { return cart_pole::begin(kPoles); });
  auto now = kept.clone();
  std::vector<torch::Tensor> next, fallen, ended;
  for (std::int64_t t = 0; t < kMoves; ++t) {
    const auto odds = model.odds(now);
    const auto right = (torch::rand({kPoles}) < torch::sigmoid(odds)).to(torch::kFloat32);
    moves.poles[t] = now;
    moves.right[t] = right;
    moves.log_before[t] = log_probability(odds, right);
    next.push_back(cart_pole::move(now, right));
    fallen.push_back(cart_pole::fallen(next[t]));
    const auto counts = next[t].select(1, 4);
    ended.push_back(torch::maximum(fallen[t], (counts >= kLongest).to(torch::kFloat32)));
    shard.metrics().sum("episodes", ended[t].sum().item<double>());
    shard.metrics().sum("moves", (ended[t] * counts).sum().item<double>());
    now = torch::where(ended[t].unsqueeze(1) > 0, cart_pole::begin(kPoles), next[t]);
  }
  kept.copy_(now);
  // An episode that is cut at kLongest would have continued: only a fall is worth nothing.
  const auto to_come = model.value(torch::stack(next)) * (1 - torch::stack(fallen));
  const auto value = model.value(moves.poles);
  const auto surplus = 1 - kDiscount + kDiscount * to_come - value;
  const auto advantage = advantages(surplus, torch::stack(ended));
  moves.returns.copy_(advantage + value);
  // By the shard's own moves: a closure does not know those of other shards.
  moves.advantage.copy_((advantage - advantage.mean()) / (advantage.std() + 1e-8));
}

/// The clipped surrogate, the critic's error and the bonus (equation 9 of the paper).
torch::Tensor loss_of(ActorCritic& model, const Moves& moves) {
  const auto odds = model.odds(moves.poles);
  const auto ratio = (log_probability(odds, moves.right) - moves.log_before).exp();
  const auto clipped = ratio.clamp(1 - kClip, 1 + kClip);
  const auto gain = torch::minimum(ratio * moves.advantage, clipped * moves.advantage);
  const auto right = torch::sigmoid(odds);
  const auto entropy = torch::binary_cross_entropy_with_logits(odds, right);
  const auto error = torch::mse_loss(model.value(moves.poles), moves.returns);
  return error - gain.mean() - kEntropyBonus * entropy;
}

/// The mean length of 64 episodes of the most probable moves.
double length_of_tests(tutti::Trainer& trainer, ActorCritic& model) {
  const auto play = [&](const std::vector<std::int64_t>& episodes, tutti::ShardMetrics& metrics) {
    const auto count = static_cast<std::int64_t>(episodes.size());
    auto poles = cart_pole::begin(count);
    auto standing = torch::ones({count});
    double moves = 0;
    for (int t = 0; t < kLongest; ++t) {
      moves += standing.sum().item<double>();
      poles = cart_pole::move(poles, (model.odds(poles) > 0).to(torch::kFloat32));
      standing = standing * (1 - cart_pole::fallen(poles));
    }
    metrics.sum("moves", moves);
  };
  return trainer.evaluate(64, 16, play)["moves"] / 64;
}

void run(std::int64_t rounds) {
  const auto job = tutti::Job::join();
  torch::manual_seed(1);
  ActorCritic model;
  tutti::Trainer trainer(job, model, tutti::Adam{.lr = 1e-3}, {.shards = kShards, .seed = 1});
  const auto compute = [&](tutti::Shard& shard) {
    Moves moves(shard);
    const auto round = (shard.step() - 1) / kPasses + 1;
    // A step that is dropped leaves no moves: the next one collects them.
    auto collected = shard.state("round", [] { return torch::zeros({1}, torch::kInt64); });
    if (collected.item<std::int64_t>() != round) collect(shard, model, moves);
    collected.fill_(round);
    return shard.loss(loss_of(model, moves));
  };

  double episodes = 0, moves = 0;
  while (trainer.steps() < rounds * kPasses) {
    const auto result = trainer.step(compute);
    if (result.metrics.contains("episodes")) {
      episodes += result.metrics["episodes"];
      moves += result.metrics["moves"];
    }
    if (result.step % (5 * kPasses) != 0) continue;
    if (job.rank() == 0) {
      std::printf("round %lld: mean length of %.0f episodes %.4f\n",
                  static_cast<long long>(result.step / kPasses), episodes, moves / episodes);
    }
    episodes = moves = 0;
  }
  const double length = length_of_tests(trainer, model);
  if (job.rank() != 0) return;
  std::printf("mean length of 64 test episodes %.4f\n", length);
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(model).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  run(argc > 1 ? std::stoll(argv[1]) : 40);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
