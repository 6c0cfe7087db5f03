#include "job/hosts/host_messages.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <fmt/format.h>

#include "base/check.h"
#include "job/hosts/host_limit.h"
#include "job/wire/rank_set.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxRun = 255;
constexpr std::size_t kMaxFacts = 4096;
constexpr std::size_t kMaxVerdictText = 65536;

class ByteWriter {
 public:
  void number(std::uint32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes_ += value;
  }
  void ranks(const std::vector<int>& values) {
    number(static_cast<std::uint32_t>(values.size()));
    for (const int rank : values) number(static_cast<std::uint32_t>(rank));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// What is not there, or too large, is zero or empty and makes good() false for ever.
class ByteReader {
 public:
  explicit ByteReader(const std::string& bytes) : bytes_(bytes) {}

  std::uint32_t number() {
    std::uint32_t value = 0;
    if (!has(sizeof value)) return 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::uint32_t number_up_to(std::uint32_t most) {
    const auto value = number();
    good_ = good_ && value <= most;
    return good_ ? value : 0;
  }
  std::string text(std::size_t most) {
    const std::size_t size = number_up_to(static_cast<std::uint32_t>(most));
    if (!has(size)) return {};
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  /// Reads the ranks of one host: ascending, at least one, below `size`.
  std::vector<int> ranks(int size) {
    std::vector<int> values(number_up_to(kMaxRanksOfHost));
    for (int& rank : values) rank = static_cast<int>(number_up_to(kMaxRanks - 1));
    good_ = good_ && !values.empty() && values.back() < size &&
            std::ranges::adjacent_find(values, std::ranges::greater_equal()) == values.end();
    return values;
  }
  bool good() const { return good_; }
  bool whole() const { return good_ && at_ == bytes_.size(); }

 private:
  bool has(std::size_t bytes) {
    good_ = good_ && bytes <= bytes_.size() - at_;
    return good_;
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
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
  ByteWriter writer;
  writer.text(introduction.run);
  writer.text(introduction.name);
  writer.number(static_cast<std::uint32_t>(introduction.size));
  writer.ranks(introduction.ranks);
  writer.number(static_cast<std::uint32_t>(introduction.attempt));
  writer.text(introduction.facts);
  return writer.take();
}

std::optional<HostIntroduction> read_introduction(const std::string& bytes) {
  ByteReader reader(bytes);
  HostIntroduction introduction;
  introduction.run = reader.text(kMaxRun);
  introduction.name = reader.text(kMaxName);
  introduction.size = static_cast<int>(reader.number_up_to(kMaxRanks));
  introduction.ranks = reader.ranks(introduction.size);
  introduction.attempt = static_cast<int>(reader.number_up_to(1U << 30));
  introduction.facts = reader.text(kMaxFacts);
  if (!reader.whole()) return {};
  return introduction;
}

std::string bytes_of(const HostList& list) {
  ByteWriter writer;
  writer.text(list.run);
  writer.number(static_cast<std::uint32_t>(list.hosts.size()));
  for (const auto& host : list.hosts) {
    writer.text(host.name);
    writer.ranks(host.ranks);
  }
  return writer.take();
}

std::optional<HostList> read_host_list(const std::string& bytes) {
  ByteReader reader(bytes);
  HostList list;
  list.run = reader.text(kMaxRun);
  const auto hosts = reader.number_up_to(kMaxRanks);
  for (std::uint32_t i = 0; i < hosts && reader.good(); ++i) {
    auto& host = list.hosts.emplace_back();
    host.name = reader.text(kMaxName);
    host.ranks = reader.ranks(kMaxRanks);
  }
  if (!reader.whole() || list.hosts.empty()) return {};
  return list;
}

std::string bytes_of(const HostVerdict& verdict) {
  ByteWriter writer;
  writer.number(static_cast<std::uint32_t>(verdict.kind));
  writer.number(static_cast<std::uint32_t>(verdict.rank));
  writer.text(verdict.text.substr(0, kMaxVerdictText));
  return writer.take();
}

std::optional<HostVerdict> read_verdict(const std::string& bytes) {
  ByteReader reader(bytes);
  HostVerdict verdict;
  verdict.kind = static_cast<HostVerdict::Kind>(
      reader.number_up_to(static_cast<std::uint32_t>(HostVerdict::Kind::later)));
  verdict.rank = static_cast<int>(reader.number_up_to(kMaxRanks - 1));
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
  if (own.ranks.size() > kMaxRanksOfHost)
    throw InvalidArgument(fmt::format("host {} has {} workers: must be 1 to {}", own.name,
                                      own.ranks.size(), kMaxRanksOfHost));
  if (!read_introduction(bytes_of(own)))
    throw InvalidArgument(
        fmt::format("host {} cannot have {} of {} workers: ranks must be ascending and below the "
                    "number of workers, which must be 1 to {}",
                    own.name, ranks_text(RankSet::of(own.ranks)), own.size, kMaxRanks));
}

}  // namespace tutti
