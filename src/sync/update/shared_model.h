#pragma once

// The parameters of a model and the state of its optimizer, once per host: one block of shared
// memory that all workers read and in which each writes the tiles it owns.
//
//   values of all parameters │ per parameter: float32 master copy of a 16-bit one, state tensors,
//   moving average
//
// in registration order, every tensor at a multiple of 64 bytes.
//
// Threads: the memory is synchronised by the step protocol. Failure: OutOfMemory when it does
// not fit.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/fold.h"
#include "kernels/update.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "tutti/group.h"

namespace tutti {

/// Number of state tensors of a parameter that has no room in the block.
inline constexpr int kNotHere = -1;

class SharedModel {
 public:
  /// `states[p]` tensors of state for parameter p, and with `averages` one more; kNotHere: no room
  /// for the parameter. Zero-filled. Collective.
  SharedModel(const Group& group, const Plan& plan, const std::vector<int>& states, bool averages,
              const std::string& name);

  /// The values, of the parameter's own type.
  std::byte* value(std::size_t parameter) const { return at(places_[parameter].value); }
  /// The tensor that the optimizer updates: the value, or its float32 master copy.
  std::byte* master(std::size_t parameter) const { return at(places_[parameter].master); }
  /// State tensor k, from 0, of the type of the master copy.
  std::byte* state(std::size_t parameter, int k) const;
  int states(std::size_t parameter) const { return places_[parameter].states; }
  /// The moving average, of the type of the master copy.
  std::byte* average(std::size_t parameter) const {
    return state(parameter, places_[parameter].states);
  }
  /// The memory that an update of these elements reads and writes, but for the gradient, with at
  /// most kMaxStates state tensors.
  UpdateTarget target(const ElementRange& range) const;
  /// Updates the range by what `fold` gives, in one sweep (kernels/fold_update.h), and rounds the
  /// values of a 16-bit parameter. `target` is that of the range.
  void update(const ElementRange& range, const Fold& fold, const UpdateTarget& target,
              PreparedUpdate by) const;
  /// Sets these values of a 16-bit parameter to `from`, which has the type of the master copy,
  /// rounded once.
  void round_values(const ElementRange& range, const std::byte* from) const;
  /// Rounds the values from the master copy, which was changed there.
  void round_values(const ElementRange& range) const;
  /// Sets the master copies of values that the program has changed.
  void refresh_masters() const;

  const SharedMemory& memory() const { return memory_; }
  /// All values lie in so many bytes at the begin of the memory, whole pages.
  std::size_t value_bytes() const { return value_bytes_; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Place {
    std::size_t value = 0;
    std::size_t master = 0;  ///< = value unless the parameter is a 16-bit float
    std::size_t first_state = 0;
    std::size_t state_bytes = 0;
    int states = 0;
  };
  std::vector<Place> places_of(const std::vector<int>& states);
  void refresh_masters(const ElementRange& tile) const;
  std::byte* at(std::size_t offset) const { return memory_.data() + offset; }

  const Plan& plan_;
  bool averages_;
  std::size_t bytes_ = 0;
  std::size_t value_bytes_ = 0;
  std::vector<Place> places_;
  SharedMemory memory_;
};

}  // namespace tutti
