#pragma once

// Models that take turns in a run: which one each of the latest steps was about, and which one is
// next if their rounds continue. By it a Trainer notices a run that was saved inside a round and
// begins with another turn.
//
// Threads: one. Failure: none.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti {

class Turns {
 public:
  /// Steps that are remembered: what is next is known for rounds of at most half as many.
  static constexpr std::size_t kMost = 32;

  Turns() = default;
  /// `latest` is what latest() gave: other models' digests make other turns, and no harm.
  explicit Turns(const std::vector<std::uint64_t>& latest) {
    for (const auto model : latest) note(model);
  }

  /// A step is over that was about the model of this digest.
  void note(std::uint64_t model);
  /// Turns of a round: the steps repeat it at least twice, and it has more than one model. 0: none.
  std::size_t round() const;
  /// The model that is next in such a round.
  std::optional<std::uint64_t> next() const;
  /// The latest steps' models, the newest at the end.
  const std::vector<std::uint64_t>& latest() const { return latest_; }

 private:
  std::vector<std::uint64_t> latest_;
};

}  // namespace tutti
