#pragma once

// Trainer::keep(): variables of the program that belong to its run. Each worker has its own, and
// all have the same values.
//
// Threads: one. Failure: InvalidArgument names the variable; Mismatch, on all workers alike, names
// the variable and the worker whose value is another.

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "run/state/run_part.h"
#include "tutti/group.h"

namespace tutti {

class KeptValues : public RunPart {
 public:
  using Variable = std::variant<double*, std::int64_t*, std::string*, torch::Tensor*>;

  /// `model`: the Trainer's name, in errors.
  explicit KeptValues(std::string model) : RunPart("kept values"), model_(std::move(model)) {}

  /// The variable outlives this object.
  void add(const std::string& name, Variable variable);
  /// InvalidArgument for a variable that no checkpoint can hold any more.
  void require_sound() const;

  /// Throws Mismatch where workers keep other names, or values of another kind. `when` begins the
  /// text. Collective, by `gather`.
  void require_equal_names(const std::string& when, const Group& group,
                           const Gather& gather) const {
    require_equal(when, false, group, gather);
  }
  /// The same for the values too.
  void require_equal_values(const std::string& when, const Group& group,
                            const Gather& gather) const {
    require_equal(when, true, group, gather);
  }

  /// The variables are the program's.
  bool outlives_run() const override { return true; }
  void list(StateTensors& tensors) const override;
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  std::vector<std::byte> read(const Checkpoint& checkpoint) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;
  void hash(Sha256& hash) const override;

 private:
  void require_equal(const std::string& when, bool values, const Group& group,
                     const Gather& gather) const;
  void compare(const std::string& when, const nlohmann::json& first, const nlohmann::json& other,
               int first_rank, int other_rank) const;
  nlohmann::json entries(bool values) const;

  std::string model_;
  std::map<std::string, Variable> variables_;  ///< by name
};

}  // namespace tutti
