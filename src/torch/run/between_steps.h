#pragma once

// Calls of a Trainer between its steps: which one may come now, and those that all workers make
// together.
//
// Threads: one. Failure: InvalidArgument for a call that comes at the wrong moment; what one worker
// throws in a call of all, all throw.

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "job/stepping.h"
#include "run/state/run_part.h"
#include "tutti/group.h"

namespace tutti {

class BetweenSteps {
 public:
  BetweenSteps(Group group, std::optional<std::chrono::milliseconds> deadline)
      : group_(std::move(group)), deadline_(deadline) {}

  const Group& group() const { return group_; }
  CollectiveOptions waits(const char* label) const {
    return {.label = label, .deadline = deadline_};
  }

  /// For the call `what`.
  RunPart::Gather gather(const char* what) const;

  /// Throws inside code that one worker runs alone (a shard, an evaluation's batch, edit()): other
  /// workers would not come to the call.
  void require_together(const std::string& what) const;
  /// Throws where the mark is another thread's. `what` ("a step of Trainer \"a\"") begins the text.
  static void require_one_thread(const std::string& what, const Stepping& stepping);
  /// Throws between the halves of a step, and inside a call that shows other values.
  void require(const char* what) const;
  /// The same but for such a call.
  void require_no_half(const char* what) const;
  /// Throws unless the program is between the halves of a step.
  void require_half(const char* what) const;
  bool is_half() const { return is_half_; }
  void set_half(bool half) { is_half_ = half; }
  /// Runs `body` inside the call `what`; what it throws.
  std::exception_ptr run_inside(const char* what, const std::function<void()>& body);

  /// All workers are here and `check` holds on all of them; where it throws, it is rethrown
  /// there, and an error of the same class elsewhere. Collective.
  void begin_on_all(const char* what, const std::function<void()>& check) const;
  /// Runs `work` on rank 0. Where it throws, returns that there, and an error of the same class and
  /// text elsewhere. Collective.
  std::exception_ptr on_first_rank(const char* what, const std::function<void()>& work) const;

 private:
  Group group_;
  std::optional<std::chrono::milliseconds> deadline_;
  bool is_half_ = false;
  const char* inside_ = "";
};

}  // namespace tutti
