#include "job/hosts/host_messages.h"

#include <algorithm>
#include <functional>
#include <span>

#include <fmt/format.h>

#include "base/bytes.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"
#include "tutti/limits.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxRun = 255;
constexpr std::size_t kMaxFacts = 4096;
constexpr std::size_t kMaxVerdictText = 65536;

void append_number(std::string& to, std::size_t value) {
  append(to, static_cast<std::uint32_t>(value));
}

void append_text(std::string& to, const std::string& text) {
  append_number(to, text.size());
  to += text;
}

void append_ranks(std::string& to, const std::vector<int>& ranks) {
  append_number(to, ranks.size());
  append_all(to, ranks);
}

/// What is not there, or too large, is zero or empty and makes good() false for ever.
class LimitedReader {
 public:
  explicit LimitedReader(const std::string& bytes) : bytes_{std::as_bytes(std::span(bytes))} {}

  std::uint32_t number_up_to(std::uint32_t most) {
    const auto value = has(sizeof most) ? bytes_.value<std::uint32_t>() : 0;
    good_ = good_ && value <= most;
    return good_ ? value : 0;
  }
  std::string text(std::size_t most) {
    const std::size_t size = number_up_to(static_cast<std::uint32_t>(most));
    return std::string(has(size) ? text_of(bytes_.bytes(size)) : "");
  }
  /// Reads the ranks of one host: ascending, at least one, below `size`.
  std::vector<int> ranks(int size) {
    std::vector<int> values(number_up_to(kMaxWorkersPerHost));
    for (int& rank : values) rank = static_cast<int>(number_up_to(kMaxWorkers - 1));
    good_ = good_ && !values.empty() && values.back() < size &&
            std::ranges::adjacent_find(values, std::ranges::greater_equal()) == values.end();
    return values;
  }
  bool good() const { return good_; }
  bool whole() const { return good_ && bytes_.left.empty(); }

 private:
  bool has(std::size_t bytes) {
    good_ = good_ && bytes <= bytes_.left.size();
    return good_;
  }

  ByteReader bytes_;
  bool good_ = true;
};

}  // namespace

void throw_verdict(const HostVerdict& verdict) {
  switch (verdict.kind) {
    case HostVerdict::Kind::lost:
      throw PeerLost(verdict.rank, verdict.text);
    case HostVerdict::Kind::mismatch:
      throw Mismatch(verdict.text);
    default:
      throw Timeout(verdict.text);
  }
}

std::string bytes_of(const HostIntroduction& introduction) {
  std::string bytes;
  append_text(bytes, introduction.run);
  append_text(bytes, introduction.name);
  append(bytes, introduction.size);
  append_ranks(bytes, introduction.ranks);
  append(bytes, introduction.attempt);
  append_text(bytes, introduction.facts);
  return bytes;
}

std::optional<HostIntroduction> read_introduction(const std::string& bytes) {
  LimitedReader reader(bytes);
  HostIntroduction introduction;
  introduction.run = reader.text(kMaxRun);
  introduction.name = reader.text(kMaxName);
  introduction.size = static_cast<int>(reader.number_up_to(kMaxWorkers));
  introduction.ranks = reader.ranks(introduction.size);
  introduction.attempt = static_cast<int>(reader.number_up_to(1U << 30));
  introduction.facts = reader.text(kMaxFacts);
  if (!reader.whole()) return {};
  return introduction;
}

std::string bytes_of(const HostList& list) {
  std::string bytes;
  append_text(bytes, list.run);
  append_number(bytes, list.hosts.size());
  for (const auto& host : list.hosts) {
    append_text(bytes, host.name);
    append_ranks(bytes, host.ranks);
  }
  return bytes;
}

std::optional<HostList> read_host_list(const std::string& bytes) {
  LimitedReader reader(bytes);
  HostList list;
  list.run = reader.text(kMaxRun);
  const auto hosts = reader.number_up_to(kMaxWorkers);
  for (std::uint32_t i = 0; i < hosts && reader.good(); ++i) {
    auto& host = list.hosts.emplace_back();
    host.name = reader.text(kMaxName);
    host.ranks = reader.ranks(kMaxWorkers);
  }
  if (!reader.whole() || list.hosts.empty()) return {};
  return list;
}

std::string bytes_of(const HostVerdict& verdict) {
  std::string bytes;
  append_number(bytes, static_cast<std::size_t>(verdict.kind));
  append(bytes, verdict.rank);
  append_text(bytes, verdict.text.substr(0, kMaxVerdictText));
  return bytes;
}

std::optional<HostVerdict> read_verdict(const std::string& bytes) {
  LimitedReader reader(bytes);
  HostVerdict verdict;
  verdict.kind = static_cast<HostVerdict::Kind>(
      reader.number_up_to(static_cast<std::uint32_t>(HostVerdict::Kind::later)));
  verdict.rank = static_cast<int>(reader.number_up_to(kMaxWorkers - 1));
  verdict.text = reader.text(kMaxVerdictText);
  if (!reader.whole()) return {};
  return verdict;
}

std::string host_text(const std::string& name, const std::vector<int>& ranks) {
  return fmt::format("{} ({})", name, ranks_text(RankSet::of(ranks)));
}

void require_introduction(const HostIntroduction& own) {
  if (own.token.empty())
    throw InvalidArgument("hosts cannot find one another without a token that all of them have");
  if (own.name.size() > kMaxName || own.run.size() > kMaxRun || own.facts.size() > kMaxFacts)
    throw InvalidArgument(fmt::format("host \"{}\" introduces itself with too long a text",
                                      own.name.substr(0, kMaxName)));
  if (own.ranks.size() > kMaxWorkersPerHost)
    throw InvalidArgument(fmt::format("host {} has {} workers: must be 1 to {}", own.name,
                                      own.ranks.size(), kMaxWorkersPerHost));
  if (!read_introduction(bytes_of(own)))
    throw InvalidArgument(
        fmt::format("host {} cannot have {} of {} workers: ranks must be ascending and below the "
                    "number of workers, which must be 1 to {}",
                    own.name, ranks_text(RankSet::of(own.ranks)), own.size, kMaxWorkers));
}

}  // namespace tutti
