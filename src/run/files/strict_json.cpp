#include "run/files/strict_json.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {
namespace {

using nlohmann::json;

using Take = std::function<void(std::span<const std::string>, json)>;

/// Follows the parser: refuses what is too much, takes away what is complete.
class Watcher {
 public:
  enum class Hands { members, values };  // what it hands over

  Watcher(const std::string& where, const JsonLimits& limits, Hands hands, const Take& take)
      : where_(where), limits_(limits), hands_(hands), take_(take) {}

  /// True if the parser shall keep what it has just read. `depth` counts what encloses it.
  bool see(int depth, json::parse_event_t event, json& read) {
    switch (event) {
      case json::parse_event_t::array_start:
      case json::parse_event_t::object_start:
        if (depth == 0 && event == json::parse_event_t::array_start) fail("is not a JSON object");
        if (depth >= limits_.depth) fail("nests objects and arrays too deeply");
        if (depth > 0) count_item();
        keys_.emplace_back();
        path_.emplace_back();
        items_.push_back(0);
        return true;
      case json::parse_event_t::key: {
        const auto& key = read.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) fail(fmt::format("has {} twice", shown(key)));
        path_.back() = key;
        return true;
      }
      case json::parse_event_t::value:
        if (depth == 0) fail("is not a JSON object");
        count_item();
        return depth == 1 || hands_ == Hands::values ? hand_over(read) : true;
      case json::parse_event_t::array_end:
      case json::parse_event_t::object_end:
        keys_.pop_back();
        items_.pop_back();
        path_.pop_back();
        if (hands_ == Hands::values) return false;  // all in it was handed over
        return depth == 1 ? hand_over(read) : true;
    }
    return true;
  }

 private:
  /// Counts items of arrays: only an array has no keys.
  void count_item() {
    if (++items_.back() > limits_.array && keys_.back().empty())
      fail(fmt::format("has an array of more than {} items", limits_.array));
  }
  bool hand_over(json& value) {
    take_(path_, std::move(value));
    return false;
  }
  [[noreturn]] void fail(const std::string& what) const { throw Corrupt(where_ + " " + what); }

  const std::string& where_;
  const JsonLimits& limits_;
  Hands hands_;
  const Take& take_;
  std::vector<std::set<std::string>> keys_;  // of every open object
  std::vector<std::size_t> items_;           // of everything open
  std::vector<std::string> path_;            // the latest key of everything open
};

void watch(std::string_view text, const std::string& where, const JsonLimits& limits,
           Watcher::Hands hands, const Take& take) {
  // The parser takes a zero byte for the end of the text.
  if (text.find('\0') != std::string_view::npos)
    throw Corrupt(fmt::format("{} is not JSON: it holds a zero byte", where));
  Watcher watcher(where, limits, hands, take);
  try {
    const auto tree = json::parse(text.begin(), text.end(),
                                  [&](int depth, json::parse_event_t event, json& read) {
                                    return watcher.see(depth, event, read);
                                  });
    static_cast<void>(tree);
  } catch (const json::parse_error& error) {
    throw Corrupt(fmt::format("{} is not JSON: error at byte {}", where, error.byte));
  } catch (const json::out_of_range&) {
    throw Corrupt(fmt::format("{} has a number that is too large", where));
  }
}

}  // namespace

void each_member(std::string_view text, const std::string& where, const JsonLimits& limits,
                 const std::function<void(const std::string&, json)>& take) {
  watch(
      text, where, limits, Watcher::Hands::members,
      [&](std::span<const std::string> path, json value) { take(path.front(), std::move(value)); });
}

void each_value(std::string_view text, const std::string& where, const JsonLimits& limits,
                const std::function<void(std::span<const std::string>, const json&)>& take) {
  watch(text, where, limits, Watcher::Hands::values, take);
}

std::string shown(std::string_view text, std::size_t most) {
  std::string line = "\"";
  std::size_t end = std::min(text.size(), most);
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  if (end < text.size())
    while (end > 0 && continues(end)) --end;
  for (const char byte : text.substr(0, end)) {
    const auto code = static_cast<unsigned char>(byte);
    line += code < 0x20 || code == 0x7F ? '?' : byte;
  }
  return line + (end < text.size() ? "…\"" : "\"");
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(json(std::string(text)).dump());
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

}  // namespace tutti
