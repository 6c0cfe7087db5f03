#pragma once

// The resolved list of what a model has, in registration order, and where each thing lies in a
// worker's arena. Two workers may train together only if their plans are equal.
//
// Pure values.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sync/plan/plan_entry.h"

namespace tutti {

class Group;

struct BufferEntry {
  TensorSpec spec;
  std::size_t offset;  ///< bytes from the start of the arena
  std::size_t bytes;
};

/// A worker's arena: slot 0, the reduced gradients of 16-bit parameters, the buffers, slot 0's row
/// lists, then further slots, each with its row lists behind it. A slot holds one folded gradient
/// of the whole model; the reduced gradient of a parameter that is not 16-bit takes the place of
/// its slot 0. Row lists have room for all rows, of which only as much becomes memory as is used.
class Plan {
 public:
  /// `settings` are what else must agree, as (name, value); `remedies` say, by the name of a
  /// setting, how workers come to agree.
  Plan(std::vector<TensorSpec> parameters, std::vector<TensorSpec> buffers,
       const std::vector<std::pair<std::string, std::string>>& settings = {},
       const std::map<std::string, std::string>& remedies = {});

  std::span<const PlanEntry> parameters() const { return parameters_; }
  std::span<const BufferEntry> buffers() const { return buffers_; }
  /// Bytes of the gradient in its node type, without padding.
  std::size_t bytes_of(std::size_t parameter) const {
    const auto& entry = parameters_[parameter];
    return static_cast<std::size_t>(entry.spec.count) * size_of(entry.node_type);
  }
  /// Bytes that are touched when a worker never holds more than one node: the arena's first. Row
  /// lists are not counted, here and in held_bytes().
  std::size_t base_bytes() const { return base_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  /// Bytes in use with that many slots.
  std::size_t held_bytes(int slots) const {
    return base_bytes_ + slot_bytes_ * static_cast<std::size_t>(slots - 1);
  }
  std::size_t arena_bytes(int slots) const { return slot_offset(slots); }
  std::size_t slot_offset(int slot) const;
  /// The offset in the arena of that slot's gradient of the parameter, or of the list of its rows.
  std::size_t node_place(std::size_t parameter, int slot) const;
  /// One line per parameter, buffer and setting.
  const std::vector<std::string>& lines() const { return lines_; }
  std::uint64_t hash() const { return hash_; }
  /// By the beginning of a line: what to do where the line differs.
  const std::map<std::string, std::string>& remedies() const { return remedies_; }

 private:
  std::vector<PlanEntry> parameters_;
  std::vector<BufferEntry> buffers_;
  std::vector<std::string> lines_;
  std::map<std::string, std::string> remedies_;
  std::size_t slot_bytes_ = 0;
  std::size_t list_bytes_ = 0;  ///< of a slot's row lists
  std::size_t base_bytes_ = 0;
  std::uint64_t hash_ = 0;
};

/// At most `most` lines on how `other` differs from `reference`.
std::vector<std::string> plan_differences(const std::vector<std::string>& reference,
                                          const std::vector<std::string>& other, std::size_t most);

/// Throws the same Mismatch on every member of the group if any two plans differ. Collective.
void require_equal_plans(const Group& group, const Plan& plan);

}  // namespace tutti
