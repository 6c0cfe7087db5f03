#pragma once

// Reads the files of events of a folder as TensorBoard does: record by record, checksums compared,
// a value taken back by a later session that starts before it.

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::test {

/// Bit by bit: its value of "123456789" is 0xE3069283.
inline std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

struct ReadHistogram {
  double minimum = 0, maximum = 0, count = 0, sum = 0, squares = 0;
  std::vector<double> limits, counts;
};

struct Events {
  std::map<std::string, std::map<std::int64_t, float>> curves;  ///< by name and step
  std::map<std::string, std::map<std::int64_t, ReadHistogram>> histograms;
  std::vector<std::string> versions;  ///< one of each file
  std::set<std::string> files;
  bool has_session = false;
};

namespace event_reader {

template <class Value>
Value take(std::string_view& bytes) {
  if (bytes.size() < sizeof(Value)) throw std::runtime_error("a message ends too early");
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

inline std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<std::uint8_t>(bytes);
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

struct Field {
  std::uint64_t number = 0;    ///< of wire type 0
  double real = 0;             ///< 1, 5
  std::string_view text = {};  ///< 2
};

/// Calls `visit(field's number, Field)` of each.
template <class Visit>
void each_field(std::string_view message, const Visit& visit) {
  while (!message.empty()) {
    const auto key = take_varint(message);
    Field field;
    switch (key & 7) {
      case 0:
        field.number = take_varint(message);
        break;
      case 1:
        field.real = take<double>(message);
        break;
      case 5:
        field.real = take<float>(message);
        break;
      case 2: {
        const auto size = take_varint(message);
        if (size > message.size()) throw std::runtime_error("a text ends too early");
        field.text = message.substr(0, size);
        message.remove_prefix(size);
        break;
      }
      default:
        throw std::runtime_error("an unknown wire type");
    }
    visit(static_cast<int>(key >> 3), field);
  }
}

inline std::vector<double> reals(std::string_view bytes) {
  std::vector<double> all;
  while (!bytes.empty()) all.push_back(take<double>(bytes));
  return all;
}

inline ReadHistogram histogram_of(std::string_view message) {
  ReadHistogram read;
  each_field(message, [&](int field, const Field& value) {
    switch (field) {
      case 1:
        read.minimum = value.real;
        break;
      case 2:
        read.maximum = value.real;
        break;
      case 3:
        read.count = value.real;
        break;
      case 4:
        read.sum = value.real;
        break;
      case 5:
        read.squares = value.real;
        break;
      case 6:
        read.limits = reals(value.text);
        break;
      case 7:
        read.counts = reals(value.text);
        break;
      default:
        throw std::runtime_error("an unknown field of a histogram");
    }
  });
  return read;
}

inline void take_back(Events& events, std::int64_t from) {
  const auto erase = [from](auto& by_name) {
    for (auto& one : by_name) one.second.erase(one.second.lower_bound(from), one.second.end());
  };
  erase(events.curves);
  erase(events.histograms);
}

inline void add_event(Events& events, std::string_view event) {
  std::int64_t step = 0;
  double time = 0;
  each_field(event, [&](int field, const Field& value) {
    if (field == 1) time = value.real;
    if (field == 2) step = static_cast<std::int64_t>(value.number);
    if (field == 3) events.versions.emplace_back(value.text);
    // The first start of a session is no restart.
    if (field == 7 && std::exchange(events.has_session, true)) take_back(events, step);
    if (field != 5) return;
    each_field(value.text, [&](int /*value*/, const Field& one) {
      std::string name;
      each_field(one.text, [&](int of_value, const Field& part) {
        if (of_value == 1) name = std::string(part.text);
        if (of_value == 2) {
          const auto value = static_cast<float>(part.real);
          if (!events.curves[name].emplace(step, value).second) {
            throw std::runtime_error("a step twice: " + name);
          }
        }
        if (of_value == 5) events.histograms[name][step] = histogram_of(part.text);
      });
    });
  });
  if (time < 1e9) throw std::runtime_error("an event of no time");
}

inline void require_crc(std::string_view bytes, std::uint32_t masked) {
  if (std::rotl(masked - 0xA282EAD8, 15) != crc32c(bytes)) {
    throw std::runtime_error("another checksum");
  }
}

}  // namespace event_reader

/// Throws where a byte is not as it should be, or a curve has a step twice.
inline Events events_in(const std::string& folder) {
  using namespace event_reader;
  Events events;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      events.files.insert(entry.path().string());
    }
  }
  for (const auto& name : events.files) {
    std::ifstream file(name, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    for (std::string_view left = all; !left.empty();) {
      const auto header = left.substr(0, 8);
      const auto size = take<std::uint64_t>(left);
      require_crc(header, take<std::uint32_t>(left));
      if (left.size() < size + 4) throw std::runtime_error("a record that is not whole");
      const auto event = left.substr(0, size);
      left.remove_prefix(size);
      require_crc(event, take<std::uint32_t>(left));
      add_event(events, event);
    }
  }
  return events;
}

}  // namespace tutti::test
