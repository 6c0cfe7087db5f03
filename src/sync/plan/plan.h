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

#include "tutti/dtype.h"

namespace tutti {

class Group;

/// A model's description of one parameter or buffer.
struct TensorSpec {
  std::string name;  ///< as in named_parameters() or named_buffers()
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  std::int64_t count = 0;
  DType dtype = DType::float32;
  /// Its gradient is a list of rows, of which most are absent: row_list.h. Rows are the slices
  /// along the first dimension.
  bool row_sparse = false;
  /// Each logical worker has its own: nothing is added up over all of them (replica_update.h).
  bool is_per_replica = false;
  /// The logical worker that alone updates it; −1: all workers share that.
  std::int64_t owner = -1;
};

/// A parameter and its place in the arena.
struct PlanEntry {
  TensorSpec spec;
  DType node_type;            ///< in which gradients are held and added: float32 for 16-bit floats
  std::size_t node_offset;    ///< bytes from the start of a slot, or of its row lists
  std::size_t node_bytes;     ///< padded to 64
  std::size_t result_offset;  ///< bytes from the start of the arena: where the reduced gradient
                              ///< lies, unless it is row-sparse
  std::size_t result_bytes;   ///< padded to 64

  bool row_sparse() const { return spec.row_sparse; }
  /// Its gradient is an array that is averaged over all shards.
  bool is_reduced() const { return !spec.row_sparse && !spec.is_per_replica; }
  /// is_reduced(), and all workers share the work, codecs included.
  bool is_partitioned() const { return is_reduced() && spec.owner < 0; }
  std::int64_t rows() const { return spec.shape.empty() ? 0 : spec.shape[0]; }
  std::int64_t row_elements() const { return rows() == 0 ? 0 : spec.count / rows(); }
};

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
