#pragma once

// Numbers in texts: of variables, of files, of messages.
//
// Threads: values. Failure: none; what is no number is std::nullopt.

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

namespace tutti {

/// Takes the number that `text` begins with off it. Where it begins with none, or with one that
/// `Number` cannot hold, `text` stays as it is.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// The whole text as a number: "-3", "0.5", "1e-3". No blanks, no "+".
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  const auto number = take_number<Number>(text);
  return text.empty() ? number : std::nullopt;
}

}  // namespace tutti
