#pragma once

// One parameter of a model, as its plan has it.
//
// Pure values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/dtype.h"

namespace tutti {

/// A model's description of one parameter or buffer.
struct TensorSpec {
  std::string name;  ///< as in named_parameters() or named_buffers()
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  std::int64_t count = 0;
  DType dtype = DType::float32;
  /// Shape, strides and count are those of its real numbers, two for each element.
  bool is_complex = false;
  /// Its gradient is a list of rows, of which most are absent: row_list.h. Rows are the slices
  /// along the first dimension.
  bool row_sparse = false;
  /// Each logical worker has its own: nothing is added up over all of them (replica_update.h).
  bool is_per_replica = false;
  /// Its gradients are added up by others than the exchange, which is told of each that there is
  /// one: it holds and sends none.
  bool is_summed_elsewhere = false;
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
  /// Its gradient is an array that the exchange averages over all shards.
  bool is_reduced() const {
    return !spec.row_sparse && !spec.is_per_replica && !spec.is_summed_elsewhere;
  }
  /// is_reduced(), and all workers share the work, codecs included.
  bool is_partitioned() const { return is_reduced() && spec.owner < 0; }
  /// Elements of the gradient that a node holds.
  std::int64_t node_count() const { return spec.is_summed_elsewhere ? 0 : spec.count; }
  std::int64_t rows() const { return spec.shape.empty() ? 0 : spec.shape[0]; }
  std::int64_t row_elements() const { return rows() == 0 ? 0 : spec.count / rows(); }
};

}  // namespace tutti
