#include "run/files/manifest.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "kernels/hash.h"
#include "run/files/strict_json.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "tutti checkpoint";
constexpr int kVersion = 3;
constexpr std::size_t kDigits = 64;
constexpr std::string_view kHashBegin = "  \"sha256\": \"";
constexpr std::string_view kHashEnd = "\"\n}\n";
constexpr std::size_t kMaxNameBytes = 255;

std::string sha256_of(std::string_view text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

void check_own_hash(std::string_view text, const std::string& where) {
  const std::size_t line = kHashBegin.size() + kDigits + kHashEnd.size();
  const auto begin = text.size() - std::min(text.size(), line);
  const std::string_view tail = text.substr(begin);
  if (tail.size() != line || !tail.starts_with(kHashBegin) || !tail.ends_with(kHashEnd))
    throw Corrupt(where +
                  " does not end with its own SHA-256: it was cut, or is no manifest of Tutti");
  if (tail.substr(kHashBegin.size(), kDigits) != sha256_of(text.substr(0, begin)))
    throw Corrupt(where + " was altered: it has not the SHA-256 that it names");
}

/// The members of the outermost object, each taken once.
class Members {
 public:
  Members(std::string_view text, std::string where) : where_(std::move(where)) {
    each_member(text, where_, {}, [&](const std::string& key, json value) {
      members_.emplace(key, std::move(value));
    });
  }
  json take(const char* key, json::value_t type) {
    const auto at = members_.find(key);
    if (at == members_.end()) throw Corrupt(fmt::format("{} has no \"{}\"", where_, key));
    json value = std::move(at->second);
    members_.erase(at);
    if (value.type() != type)
      throw Corrupt(fmt::format("{} has a \"{}\" of wrong kind", where_, key));
    return value;
  }
  void check_all_taken() const {
    if (!members_.empty())
      throw Corrupt(
          fmt::format("{} has {}, which is not known", where_, shown(members_.begin()->first)));
  }

 private:
  std::string where_;
  std::map<std::string, json> members_;
};

bool is_sha256(const json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

FileDigest parse_file(const std::string& name, const json& value, const std::string& where) {
  if (!is_file_name(name))
    throw Corrupt(fmt::format("{} lists {}, which is no name for a file", where, shown(name)));
  if (!value.is_object() || value.size() != 2 || !value.contains("bytes") ||
      !value["bytes"].is_number_unsigned() || !value.contains("sha256") ||
      !is_sha256(value["sha256"]))
    throw Corrupt(fmt::format("{} does not give bytes and sha256 of {}", where, shown(name)));
  return {value["bytes"].get<std::uint64_t>(), value["sha256"].get<std::string>()};
}

/// A manifest that no reader would accept is the writer's fault.
Manifest read_back(const std::string& text) {
  try {
    return parse_manifest(text, "the manifest to be written");
  } catch (const Corrupt& error) {
    throw InvalidArgument(error.what());
  }
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  auto files = nlohmann::ordered_json::object();
  for (const auto& [name, digest] : manifest.files)
    files[name] = {{"bytes", digest.bytes}, {"sha256", digest.sha256}};
  const nlohmann::ordered_json tree = {
      {"format", kFormat},
      {"version", kVersion},
      {"step", manifest.step},
      {"run", manifest.run},
      {"facts", nlohmann::ordered_json::object_t(manifest.facts.begin(), manifest.facts.end())},
      {"state", nlohmann::ordered_json(json(manifest.state))},
      {"files", std::move(files)}};
  std::string text;
  try {
    text = tree.dump(2);
  } catch (const json::type_error&) {
    throw InvalidArgument("facts or state of a checkpoint hold text that is not UTF-8");
  }
  text.resize(text.size() - 2);  // "\n}" comes after the hash
  text += ",\n";
  text += fmt::format("{}{}{}", kHashBegin, sha256_of(text), kHashEnd);
  if (read_back(text) != manifest)
    throw InvalidArgument(
        "the state of a checkpoint holds a value that JSON cannot keep (NaN, infinity)");
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  check_own_hash(text, where);
  Members members(text, where);
  if (members.take("format", json::value_t::string) != kFormat)
    throw Corrupt(where + " is no manifest of Tutti: its format is another");
  const json version = members.take("version", json::value_t::number_unsigned);
  if (version != kVersion) {
    // Version 3 gave options and files other names: equal runs could not be recognised.
    throw Unsupported(fmt::format(
        "{} has version {}; this build reads version {}{}", where, version.dump(), kVersion,
        version < kVersion
            ? ", whose options and files have other names: resume with the Tutti that "
              "wrote it"
            : ""));
  }
  Manifest manifest;
  const auto step = members.take("step", json::value_t::number_unsigned).get<std::uint64_t>();
  if (step > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Corrupt(fmt::format("{} has step {}, which is too large", where, step));
  manifest.step = static_cast<std::int64_t>(step);
  manifest.run = members.take("run", json::value_t::string).get<std::string>();
  const json facts = members.take("facts", json::value_t::object);
  for (const auto& [key, value] : facts.items()) {
    if (!value.is_string())
      throw Corrupt(fmt::format("{} has a fact {} that is no text", where, shown(key)));
    manifest.facts[key] = value.get<std::string>();
  }
  json state = members.take("state", json::value_t::object);
  for (auto& [key, value] : state.items()) manifest.state[key] = std::move(value);
  const json files = members.take("files", json::value_t::object);
  for (const auto& [name, value] : files.items())
    manifest.files[name] = parse_file(name, value, where);
  members.take("sha256", json::value_t::string);  // compared above
  members.check_all_taken();
  return manifest;
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name != kManifestName && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos && is_utf8(name);
}

}  // namespace tutti
