#pragma once

// JSON as an enemy may have written it: duplicate keys, endless nesting and bytes that only some
// parsers see are refused. Members are handed over one by one, so that a large text never becomes
// a larger tree.
//
// Threads: pure functions. Failure: Corrupt that begins with `where`.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tutti {

struct JsonLimits {
  int depth = 16;                            ///< of objects and arrays, the outermost included
  std::size_t array = std::size_t{1} << 20;  ///< items of one array
};

/// Calls `take` with every member of the object that `text` is, in the order of the text.
void each_member(std::string_view text, const std::string& where, const JsonLimits& limits,
                 const std::function<void(const std::string& key, nlohmann::json value)>& take);

/// Calls `take` with every text, number, boolean and null of the object that `text` is, at whatever
/// depth, in the order of the text. `path` holds the keys that lead there, outermost first; an item
/// of an array has the key "".
void each_value(std::string_view text, const std::string& where, const JsonLimits& limits,
                const std::function<void(std::span<const std::string> path,
                                         const nlohmann::json& value)>& take);

/// `text` as an error may show it: quoted, on one line, cut after `most` bytes.
std::string shown(std::string_view text, std::size_t most = 80);

/// True if every byte belongs to valid UTF-8, which is all that JSON can hold.
bool is_utf8(std::string_view text);

}  // namespace tutti
