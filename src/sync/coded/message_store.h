#pragma once

// The messages of a step, and the residuals of earlier ones, in memory that all workers of a host
// share. Each logical worker has room for one message per bucket. Residuals and velocities are
// double-buffered: a dropped step does not flip them. What tells of messages is control memory.
//
// Threads: the memory is synchronised by the step protocol; each message has one writer. Failure:
// OutOfMemory when it does not fit.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sync/nodes/step_memory.h"
#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "tutti/group.h"

namespace tutti {

/// The facts about a message.
struct MessageHeader {
  std::uint64_t bytes = 0;
  std::int64_t values = 0;  ///< sent
  std::uint32_t is_dense = 0;
  std::uint32_t is_overflow = 0;  ///< refused because the gradient itself is not finite
  double residual_squares = 0;    ///< Σ x² of what is left of the bucket; only between hosts
  char refusal[500] = {};         ///< why there is none; empty: there is one

  /// What other hosts need of it: all but the end of the text, which is empty in most.
  std::size_t told_bytes() const;
};

/// What a host's workers have made of a step's messages, in the order in which they leave: words of
/// the step and a number. See host_messages.h.
struct alignas(64) MessageLog {
  std::atomic<std::uint64_t> made;   ///< entries that a worker fills, or has filled
  std::atomic<std::uint64_t> given;  ///< entries that other hosts know
};

/// Arrays that are kept for the next step, per logical worker and parameter: one float32 for each
/// element.
enum class Kept : std::uint8_t { residual, velocity };

class MessageStore {
 public:
  struct Layout {
    std::size_t logical_workers = 1;
    Buckets buckets;
    std::vector<std::size_t> bounds;  ///< per bucket: bytes of a message
    int kept = 0;                     ///< number of arrays, the first ones of Kept
  };
  /// Collective.
  MessageStore(StepMemory& memory, const Plan& plan, Layout layout, const std::string& name);

  std::size_t logical_workers() const { return layout_.logical_workers; }
  const Buckets& buckets() const { return layout_.buckets; }
  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  int kept() const { return layout_.kept; }
  bool has_residuals() const { return layout_.kept > 0; }
  /// Bytes that a message of the bucket may have.
  std::size_t room(std::size_t bucket) const { return layout_.bounds[bucket]; }

  MessageHeader& header(std::size_t logical, std::size_t bucket) const {
    return control_.headers[logical][bucket];
  }
  std::byte* message(std::size_t logical, std::size_t bucket) const {
    return arrays_[logical].messages[bucket].data();
  }
  /// The array as the last step that counted left it.
  float* kept(Kept which, std::size_t logical, std::size_t parameter) const {
    return kept_at(which, logical, parameter, is_second_[logical][parameter]);
  }
  /// The array that the current step writes.
  float* next(Kept which, std::size_t logical, std::size_t parameter) const {
    return kept_at(which, logical, parameter, !is_second_[logical][parameter]);
  }
  /// All kept() arrays of a logical worker, those that are contiguous as one.
  std::vector<std::span<std::byte>> kept_memory(const Plan& plan, std::size_t logical) const;
  /// The next residuals of a bucket where they are contiguous; else null, because some of its
  /// parameters were touched in more steps than others.
  float* next_residuals(std::size_t logical, std::size_t bucket) const;
  /// The current step counts. Every worker calls it for the same parameters.
  void turn(std::size_t logical, std::size_t parameter) {
    is_second_[logical][parameter] = !is_second_[logical][parameter];
  }
  /// Grows by the elements of each sum of the bucket that are not −0.0: in every step, never back.
  std::atomic<std::int64_t>& sum_values(std::size_t bucket) const {
    return control_.sum_values[bucket];
  }
  MessageLog& log(int host) const { return control_.logs[static_cast<std::size_t>(host)]; }
  /// One for each message of a step: logical worker · buckets + bucket + 1.
  std::span<std::atomic<std::uint64_t>> entries(int host) const {
    return {control_.entries[static_cast<std::size_t>(host)],
            layout_.logical_workers * layout_.buckets.size()};
  }
  /// Shared bytes per logical worker.
  std::size_t bytes_per_logical_worker() const {
    return memory_.bytes() / layout_.logical_workers +
           round_up(layout_.buckets.size() * sizeof(MessageHeader), kSectionAlignment);
  }

 private:
  struct Control {
    Control(Sections& at, const Layout& layout, std::size_t hosts);
    SectionRows<MessageHeader> headers;  ///< by logical worker and bucket
    Section<std::atomic<std::int64_t>> sum_values;
    Section<MessageLog> logs;                         ///< by host
    SectionRows<std::atomic<std::uint64_t>> entries;  ///< by host
  };
  /// Of a logical worker.
  struct Arrays {
    Arrays(Sections& at, const Layout& layout, std::size_t elements);
    SectionRows<float> kept;          ///< two of each of Kept
    SectionList<std::byte> messages;  ///< by bucket
  };
  /// Fills bucket_of_ and element_at_; returns the elements of one of Kept, of a logical worker.
  std::size_t place(const Plan& plan);
  float* kept_at(Kept which, std::size_t logical, std::size_t parameter, bool second) const {
    return arrays_[logical].kept[2 * static_cast<std::size_t>(which) + (second ? 1 : 0)] +
           element_at_[parameter];
  }

  Layout layout_;
  std::vector<std::size_t> bucket_of_;        ///< per parameter
  std::vector<std::size_t> element_at_;       ///< per parameter: its first in what is kept
  std::size_t kept_elements_;                 ///< of one of Kept, of a logical worker
  std::vector<std::vector<bool>> is_second_;  ///< true: the second of the two buffers is current
  Control control_;
  SharedMemory memory_;         ///< arrays_
  std::vector<Arrays> arrays_;  ///< by logical worker
};

}  // namespace tutti
