#pragma once

// A layer's part in a Trainer's steps and evaluations, in which members call the layer as often as
// their shards and batches do: a member that has no call to make joins those of others.
//
// Threads: one. Failure: InvalidArgument for a call that comes at the wrong moment.

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "job/alone.h"

namespace tutti {

enum class ClassifierUse : std::uint8_t { forward, predict };

class ClassifierRounds {
 public:
  /// `layer` begins the errors: "classifier \"head\"".
  ClassifierRounds(JobState& job, std::string layer) : job_(job), layer_(std::move(layer)) {}

  /// Comes before each call of this member: returns when all make it.
  using Announce = std::function<void(ClassifierUse)>;
  void begin_step(std::int64_t step, std::int64_t shards, Announce announce);
  /// The shard that this member computes from then on.
  void begin_shard(std::int64_t shard);
  /// The Trainer runs the shard's backward, or no longer.
  void set_backward(bool runs);
  /// Ends the step, if there is one.
  void end_step();
  void begin_evaluation(Announce announce);
  void end_evaluation() noexcept { round_.reset(); }

  /// Runs a call of the layer: in a round with those of all members, and keeping what it throws.
  template <class Call>
  auto run(ClassifierUse use, const Call& call) {
    try {
      require_turn(use);
      const auto together = round_ ? std::make_unique<Together>(job_) : nullptr;
      if (round_ && !round_->is_joining) round_->announce(use);
      return call();
    } catch (...) {
      if (round_ && !round_->is_joining) round_->failure = std::current_exception();
      throw;
    }
  }
  /// Runs a call of the layer without samples, for another member's.
  void join(const std::function<void()>& call);
  /// Throws what a call in this shard or batch has thrown, though it may have been caught.
  void rethrow_failure() const;

  /// In a step or an evaluation: each member's samples are a leaf.
  bool is_open() const { return round_.has_value(); }
  bool is_evaluation() const { return round_ && !round_->shards; }
  bool is_step() const { return round_ && round_->shards; }
  bool is_called_in_shard() const { return is_step() && round_->is_called; }
  bool is_in_backward() const { return round_ && round_->in_backward; }
  /// The number of the step; 0: there is none.
  std::int64_t number() const { return round_ ? round_->number : 0; }
  std::optional<std::int64_t> shards() const { return round_ ? round_->shards : std::nullopt; }
  /// That this member computes; −1: none.
  std::int64_t shard() const { return round_ ? round_->shard : -1; }
  /// Steps that have begun, and ended: a call of one is none of another, nor of none.
  std::int64_t era() const { return era_; }

 private:
  struct Round {
    Announce announce;
    std::int64_t number = 0;
    std::optional<std::int64_t> shards = {};  ///< of a step; an evaluation has none
    std::int64_t shard = 0;
    bool is_called = true;  ///< in this shard
    bool in_backward = false;
    bool is_joining = false;  ///< another member's call
    std::exception_ptr failure = nullptr;
  };
  /// InvalidArgument where `use` may not come.
  void require_turn(ClassifierUse use);

  JobState& job_;
  std::string layer_;
  std::optional<Round> round_;
  std::int64_t era_ = 0;
};

}  // namespace tutti
