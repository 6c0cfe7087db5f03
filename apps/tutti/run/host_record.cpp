#include "apps/tutti/run/host_record.h"

#include <fmt/format.h>
#include <sstream>

namespace tutti::command {
namespace {

constexpr const char* kHub = "\x1etutti-hub";
constexpr const char* kFailure = "\x1etutti-failure";
constexpr const char* kSaves = "\x1etutti-saves";

}  // namespace

std::string text_of(const HostRecord& record) {
  if (record.saves) return kSaves;
  if (record.rank < 0) return fmt::format("{} {} {}", kHub, record.address, record.port);
  return fmt::format("{} {} {} {}", kFailure, record.rank, record.status, record.culprit);
}

std::optional<HostRecord> read_record(const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  HostRecord record;
  words >> kind;
  record.saves = kind == kSaves;
  if (record.saves) return record;
  if (kind == kHub && words >> record.address >> record.port) return record;
  if (kind == kFailure && words >> record.rank >> record.status >> record.culprit) return record;
  return {};
}

}  // namespace tutti::command
