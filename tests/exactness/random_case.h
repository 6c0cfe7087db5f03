#pragma once

// A whole training run at random: what it is (model, options, data, faults), which decides its
// bytes, and how it is run (workers, stops, speeds, …), which must not. Plain data: any machine
// draws the same cases.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exactness/choices.h"

namespace tutti::test::exact {

/// All choices of a case. Names are written with a dash for a space, so that a case fits a command.
Choices draw_case(std::uint64_t seed, std::uint64_t number, const Choices::Fixed& fixed = {});

/// Some steps that one set of processes takes.
struct Stretch {
  int workers = 1;
  std::int64_t begin = 0;  ///< steps that are over
  std::int64_t end = 0;
  bool is_reference = true;
  bool is_last = true;  ///< nothing goes on from it
};
/// One worker that never stops.
Stretch reference_of(const Choices& one);
std::vector<Stretch> stretches_of(const Choices& one);

/// Pairs of what docs/combinations.md says "refused" of.
class Refusals {
 public:
  explicit Refusals(const std::string& page);
  /// Whether the page says it of something in the case; why not is empty.
  std::string reason(const Choices& one) const;
  /// All names of rows and columns.
  const std::set<std::string>& names() const { return names_; }

 private:
  std::set<std::pair<std::string, std::string>> pairs_;
  std::set<std::string> names_;
};

/// By the names of docs/combinations.md: what meets in a parameter of the model, for each kind of
/// parameter that the case has.
std::vector<std::set<std::string>> features_of(const Choices& one);

}  // namespace tutti::test::exact
