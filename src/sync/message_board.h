#pragma once

// The messages of a step, and what earlier ones left out, in memory that all workers of a host
// share: for each logical worker and each group of parameters room for one message, and the
// residuals twice, so that those of a step that is dropped are simply forgotten.
//
// Threads: the memory is synchronised by the step protocol; each message has one writer. Failure:
// BadInput when it does not fit.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sync/fusion.h"
#include "sync/plan.h"
#include "tutti/group.h"

namespace tutti {

/// What is to be known of a message besides its bytes.
struct MessageHeader {
  std::uint64_t bytes = 0;
  std::int64_t values = 0;  ///< sent
  std::uint32_t is_dense = 0;
  std::uint32_t is_overflow = 0;  ///< refused because the gradient itself is not finite
  char refusal[500] = {};         ///< why there is none; empty: there is one
};

class MessageBoard {
 public:
  struct Layout {
    std::size_t logical_workers = 1;
    ParameterGroups groups;
    std::vector<std::size_t> bounds;  ///< per group: bytes of a message
    bool residuals = false;
  };
  /// Collective.
  MessageBoard(const Group& group, const Plan& plan, Layout layout, const std::string& name);

  std::size_t logical_workers() const { return layout_.logical_workers; }
  const ParameterGroups& groups() const { return layout_.groups; }
  std::size_t group_of(std::size_t parameter) const { return group_of_[parameter]; }
  bool has_residuals() const { return layout_.residuals; }
  /// Bytes that a message of the group may have.
  std::size_t room(std::size_t group) const { return layout_.bounds[group]; }

  MessageHeader& header(std::size_t logical, std::size_t group) const;
  std::byte* message(std::size_t logical, std::size_t group) const;
  /// Of the steps so far.
  float* residual(std::size_t logical, std::size_t parameter) const {
    return residual_at(logical, parameter, is_second_[logical][parameter]);
  }
  /// Where that of the step at hand is made.
  float* next_residual(std::size_t logical, std::size_t parameter) const {
    return residual_at(logical, parameter, !is_second_[logical][parameter]);
  }
  /// All of a group's, where they lie one after the other; else null: some of its parameters were
  /// touched in more steps than others.
  float* next_residuals(std::size_t logical, std::size_t group) const;
  /// The step at hand counts: called by every worker for the same parameters.
  void turn(std::size_t logical, std::size_t parameter) {
    is_second_[logical][parameter] = !is_second_[logical][parameter];
  }
  /// Grows by the elements of each sum of the group that are not −0.0: in every step, never back.
  std::atomic<std::int64_t>& sum_values(std::size_t group) const {
    return reinterpret_cast<std::atomic<std::int64_t>*>(memory_.data() + first_sum_)[group];
  }
  /// Shared bytes per logical worker.
  std::size_t bytes_per_logical_worker() const { return bytes_per_logical_; }

 private:
  float* residual_at(std::size_t logical, std::size_t parameter, bool second) const;

  Layout layout_;
  std::vector<std::size_t> group_of_;     ///< per parameter
  std::vector<std::size_t> residual_at_;  ///< per parameter: elements
  std::vector<std::size_t> message_at_;   ///< per group: bytes
  std::size_t residual_elements_ = 0;     ///< of a logical worker
  std::size_t first_message_ = 0;         ///< bytes within a logical worker's part
  std::size_t bytes_per_logical_ = 0;
  std::size_t first_sum_ = 0;                 ///< bytes
  std::vector<std::vector<bool>> is_second_;  ///< which of the two residuals holds
  SharedMemory memory_;
};

}  // namespace tutti
