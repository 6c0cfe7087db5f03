#pragma once

// What a run gave, for TensorBoard: a file of events in a folder of theirs. A record is the length
// and the bytes of an event, each followed by its masked CRC-32C (TensorFlow's record_writer.cc);
// an event is a message of TensorFlow's event.proto, of which values of numbers and histograms are
// written.
//
// A folder may have several files, which TensorBoard reads in the order of their names: each new
// one comes after those that are there. A run that goes on from step S writes a mark, a session's
// start: values of later steps, in files before it, do not count. Of all files the first such mark
// takes nothing back, so that every file begins with one after all steps.
//
// Every call is one write, so a killed run leaves whole records, and at most the last one
// unfinished, which TensorBoard passes over; one that cannot be written whole is taken back, since
// nothing behind it would be read. Records are not brought to disk one by one.
//
// Threads: any. Processes: each has a file of its own. Failure: that of Files;
// InvalidArgument for a name that is not UTF-8: no reader takes a file with one.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"

namespace tutti {

/// How often values lie between limits. What is not finite is left out.
struct Histogram {
  double minimum = 0;
  double maximum = 0;
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits;  ///< upper ones, ascending; the last one above the maximum
  std::vector<double> counts;  ///< from the limit before up to this one, which is not in it

  /// By limits ±1e-12 · 1.1ᵏ, those of TensorFlow's own. Nothing where no value is finite.
  static std::optional<Histogram> of(std::span<const double> values);
};

/// InvalidArgument for the name of a curve that is not UTF-8.
void require_utf8(std::string_view name);

class EventFile {
 public:
  /// The folder is made with those above it; the file, whose name tells time, host and process,
  /// with the first value.
  EventFile(std::shared_ptr<Files> files, const std::filesystem::path& folder);

  /// Steps up to `steps` are over: what was written of later ones does not count any more. 0: of a
  /// run from the start, which leaves alone what this file has already.
  void resume(std::int64_t steps);
  /// Values of a step by their names.
  void scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values);
  void histogram(std::int64_t step, std::string_view name, const Histogram& histogram);

 private:
  void append(const std::string& event);
  void write(const std::string& records);

  std::shared_ptr<Files> files_;
  std::filesystem::path folder_;
  std::mutex mutex_;
  std::optional<File> file_;
  std::uint64_t whole_ = 0;  ///< bytes of whole records
  bool has_values_ = false;
};

/// The right to write a run's curves into a folder, as long as the file is open: two runs would mix
/// theirs. InvalidArgument where another run has it.
File lock_curves(const std::filesystem::path& folder);

/// The open file of this process in that folder, a new one where there is none: one for all who
/// write there.
std::shared_ptr<EventFile> event_file_in(const std::filesystem::path& folder);

}  // namespace tutti
