#include "run/log/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/bytes.h"
#include "run/files/strict_json.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

// ---- CRC-32C (Castagnoli), RFC 3720, appendix B.4 ----

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table.at(byte) = crc;
  }
  return table;
}

std::uint32_t masked_crc(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable.at((crc ^ static_cast<unsigned char>(byte)) & 0xFF);
  }
  return std::rotr(~crc, 15) + 0xA282EAD8;  // TensorFlow's crc32c.h
}

// ---- messages of protobuf ----

enum class Wire : std::uint8_t { varint = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

class Message {
 public:
  Message& number(int field, std::uint64_t value) {
    key(field, Wire::varint);
    varint(value);
    return *this;
  }
  Message& real(int field, double value) {
    key(field, Wire::eight_bytes);
    append(bytes_, value);
    return *this;
  }
  Message& real32(int field, float value) {
    key(field, Wire::four_bytes);
    append(bytes_, value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, Wire::bytes);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& reals(int field, const std::vector<double>& values) {
    return text(field, text_of(std::as_bytes(std::span(values))));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, Wire wire) {
    varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// Numbers of fields: event.proto and summary.proto.

/// An event of this moment.
Message event_of(std::int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Message event;
  event.real(1, std::chrono::duration<double>(now).count());
  return event.number(2, static_cast<std::uint64_t>(step));
}

/// The folder's absolute name; it is there.
fs::path made(Files& files, const fs::path& folder) {
  auto absolute = fs::absolute(folder);
  ensure_folder(files, absolute);
  return absolute;
}

constexpr std::int64_t kLastSecond = 9'999'999'999;  // of ten digits
constexpr std::string_view kPrefix = "events.out.tfevents.";

/// A name after those of all files of events that are there: TensorBoard reads them in that order,
/// as texts.
std::string name_of_new_file(const Files& files, const fs::path& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (const auto& name : files.names_in(folder)) {
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t of_other = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), of_other);
    if (of_other < kLastSecond) second = std::max(second, of_other + 1);
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("{}{:010}.{}.{}", kPrefix, second, host.data(), ::getpid());
}

std::string record_of(std::string_view event) {
  std::string record;
  const std::uint64_t size = event.size();
  append(record, size);
  append(record, masked_crc(record));
  record += event;
  append(record, masked_crc(event));
  return record;
}

/// The start of a session at that step.
std::string session_record(std::int64_t step) {
  constexpr int kStart = 1;  // SessionLog::START
  return record_of(event_of(step).text(7, Message().number(1, kStart).bytes()).bytes());
}

constexpr double kSmallestLimit = 1e-12;
constexpr double kLargestLimit = 1e20;
constexpr double kLimitFactor = 1.1;

const std::vector<double>& all_limits() {
  static const std::vector<double> all = [] {
    std::vector<double> positive;
    for (double limit = kSmallestLimit; limit < kLargestLimit; limit *= kLimitFactor) {
      positive.push_back(limit);
    }
    std::vector<double> both;
    std::transform(positive.rbegin(), positive.rend(), std::back_inserter(both), std::negate());
    both.push_back(0);
    both.insert(both.end(), positive.begin(), positive.end());
    both.push_back(std::numeric_limits<double>::max());
    return both;
  }();
  return all;
}

}  // namespace

void require_utf8(std::string_view name) {
  if (!is_utf8(name)) throw InvalidArgument("the name of a curve is not UTF-8");
}

std::optional<Histogram> Histogram::of(std::span<const double> values) {
  const auto& all = all_limits();
  std::vector<double> counts(all.size());
  Histogram found;
  found.minimum = std::numeric_limits<double>::infinity();
  found.maximum = -found.minimum;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    found.minimum = std::min(found.minimum, value);
    found.maximum = std::max(found.maximum, value);
    found.count += 1;
    found.sum += value;
    found.sum_of_squares += value * value;
    const auto above = std::upper_bound(all.begin(), std::prev(all.end()), value);
    counts[static_cast<std::size_t>(above - all.begin())] += 1;
  }
  if (found.count == 0) return {};
  const auto holds = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), holds) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), holds);
  found.limits.assign(all.begin() + first, all.begin() + last);
  found.counts.assign(counts.begin() + first, counts.begin() + last);
  return found;
}

EventFile::EventFile(std::shared_ptr<Files> files, const fs::path& folder)
    : files_(std::move(files)), folder_(made(*files_, folder)) {}

void EventFile::resume(std::int64_t steps) {
  const std::lock_guard lock(mutex_);
  if (steps == 0 && has_values_) return;
  write(session_record(steps + 1));
}

void EventFile::scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values) {
  Message summary;
  for (const auto& [name, value] : values) {
    require_utf8(name);
    summary.text(1, Message().text(1, name).real32(2, static_cast<float>(value)).bytes());
  }
  append(event_of(step).text(5, summary.bytes()).bytes());
}

void EventFile::histogram(std::int64_t step, std::string_view name, const Histogram& histogram) {
  require_utf8(name);
  Message message;
  message.real(1, histogram.minimum).real(2, histogram.maximum).real(3, histogram.count);
  message.real(4, histogram.sum).real(5, histogram.sum_of_squares);
  message.reals(6, histogram.limits).reals(7, histogram.counts);
  const auto value = Message().text(1, name).text(5, message.bytes());
  append(event_of(step).text(5, Message().text(1, value.bytes()).bytes()).bytes());
}

void EventFile::append(const std::string& event) {
  const auto record = record_of(event);
  const std::lock_guard lock(mutex_);
  write(record);
  has_values_ = true;
}

void EventFile::write(const std::string& records) {
  if (!file_) file_ = files_->append(folder_ / name_of_new_file(*files_, folder_));
  // What a write has left that could not be taken back would hide all that follows.
  if (files_->size(*file_) != whole_) files_->cut(*file_, whole_);
  const auto begin = whole_ == 0 ? record_of(event_of(0).text(3, "brain.Event:2").bytes()) +
                                       session_record(std::numeric_limits<std::int64_t>::max())
                                 : std::string();
  const auto all = begin + records;
  append_whole(*files_, *file_, std::as_bytes(std::span(all)));
  whole_ += all.size();
}

File lock_curves(const fs::path& folder) {
  auto lock = host_files()->lock(made(*host_files(), folder) / ".lock");
  if (!lock) {
    throw InvalidArgument(fmt::format(
        "another Trainer writes its curves to {} at this time: give each a directory of its own",
        folder.string()));
  }
  return std::move(*lock);
}

std::shared_ptr<EventFile> event_file_in(const fs::path& folder) {
  static std::mutex mutex;
  static std::map<fs::path, std::weak_ptr<EventFile>> open;
  const std::lock_guard lock(mutex);
  auto& known = open[fs::canonical(made(*host_files(), folder))];
  auto file = known.lock();
  if (!file) known = file = std::make_shared<EventFile>(host_files(), folder);
  return file;
}

}  // namespace tutti
