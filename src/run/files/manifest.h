#pragma once

// How a checkpoint describes itself: manifest.json, JSON for people and programs. Its last line
// holds the SHA-256 of all bytes before that line, so that no altered byte goes unseen.
//
// Threads: pure functions. Failure: InvalidArgument for what cannot be written, Corrupt for
// what to_text() has not written, Unsupported for another version.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "run/files/hashed_file.h"
#include "run/files/run_fingerprint.h"

namespace tutti {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  std::int64_t step = 0;                             ///< steps done; 0 before the first
  RunFingerprint facts = {};                         ///< must be equal to resume
  std::map<std::string, nlohmann::json> state = {};  ///< where the run stands: epoch, loss scale, …
  std::map<std::string, FileDigest> files = {};      ///< by name in the checkpoint's folder
  std::string run = {};                              ///< Job::run_id() of the run that wrote it
  bool operator==(const Manifest&) const = default;
};

/// The file's text. What JSON cannot hold (NaN, infinities, text that is not UTF-8) is refused.
std::string to_text(const Manifest& manifest);
/// Refuses whatever to_text would not have written; `where` begins the error's text.
Manifest parse_manifest(std::string_view text, const std::string& where);

/// A plain name that a checkpoint's file may bear: no folder, not hidden, not the manifest's own.
bool is_file_name(std::string_view name);

}  // namespace tutti
