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

#include "kernels/update.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "tutti/group.h"

namespace tutti {

/// Tensors of state of a parameter of which there is nothing at all.
inline constexpr int kNotHere = -1;

class SharedModel {
 public:
  /// `states[p]` tensors of state for parameter p, and with `averages` one more; kNotHere: no room
  /// for the parameter. Zero-filled. Collective.
  SharedModel(const Group& group, const Plan& plan, const std::vector<int>& states, bool averages,
              const std::string& name);

  /// Elements as in the plan, of the parameter's own type.
  std::byte* value(std::size_t parameter) const { return at(places_[parameter].value); }
  /// What the optimizer updates: the value, or its float32 master copy.
  std::byte* master(std::size_t parameter) const { return at(places_[parameter].master); }
  /// Of the type of the master copy; k counts from 0.
  std::byte* state(std::size_t parameter, int k) const;
  int states(std::size_t parameter) const { return places_[parameter].states; }
  bool has_averages() const { return averages_; }
  /// Of the type of the master copy.
  std::byte* average(std::size_t parameter) const {
    return state(parameter, places_[parameter].states);
  }
  /// What an update of these elements reads and writes, but for the gradient: of the states, as
  /// many as a rule with a kernel may have.
  UpdateTarget target(const ElementRange& range) const;
  /// Of a 16-bit parameter: these of its values become `from`, of the type of the master copy,
  /// rounded once.
  void round_values(const ElementRange& range, const std::byte* from) const;
  /// Its master copy was changed there: the values follow.
  void round_values(const ElementRange& range) const;
  /// After values were changed by hand: the master copies of those that were follow.
  void refresh_masters() const;

  const SharedMemory& memory() const { return memory_; }
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
  std::vector<Place> places_;
  SharedMemory memory_;
};

}  // namespace tutti
