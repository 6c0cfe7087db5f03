#pragma once

// Named choices, each drawn from (seed, number of the case, name) alone: the same on any machine,
// and no choice moves another one. The first option of each is the plain one.
//
// Threads: one. Failure: std::invalid_argument for a fixed choice that is no option, or that nobody
// asks for.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::test::exact {

/// A number for every (seed, a, b, text): 64 bits, by the finaliser of SplitMix64 (Steele, Lea and
/// Flood 2014, "Fast splittable pseudorandom number generators", figure 15) over an FNV-1a hash.
std::uint64_t number_of(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                        std::string_view text);

class Choices {
 public:
  using Fixed = std::map<std::string, std::string>;
  /// `fixed` choices are not drawn.
  Choices(std::uint64_t seed, std::uint64_t number, Fixed fixed = {});

  /// One of the options, each as likely as any other; repeat one that shall be likelier.
  std::string of(const std::string& name, const std::vector<std::string>& options);
  /// A number from `plain` to `most`.
  std::int64_t between(const std::string& name, std::int64_t plain, std::int64_t most);
  /// True in so many of 100 cases; false is the plain one.
  bool chance(const std::string& name, std::uint64_t percent);

  /// What was chosen. std::invalid_argument for a name that was never asked for.
  const std::string& operator[](const std::string& name) const;
  bool is(const std::string& name, const std::string& value) const {
    return (*this)[name] == value;
  }
  bool has(const std::string& name) const { return is(name, "yes"); }
  std::int64_t number(const std::string& name) const;

  /// Names of those that are not plain, in the order in which they were made.
  std::vector<std::string> unusual() const;
  const std::string& plain(const std::string& name) const;
  /// "model=lstm clip=norm …": those that are not plain.
  std::string text() const;
  /// Throws for a fixed one that nobody asked for.
  void require_all_used() const;

 private:
  struct Choice {
    std::string value;
    std::string plain;
  };
  std::uint64_t draw(const std::string& name) const;
  void note(const std::string& name, std::string value, std::string plain);

  std::uint64_t seed_;
  std::uint64_t number_;
  Fixed fixed_;
  std::map<std::string, Choice> made_;
  std::vector<std::string> order_;
};

}  // namespace tutti::test::exact
