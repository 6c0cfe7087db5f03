#pragma once

// What a golden run gave, as lines "name: value" that a diff shows to people, and the same of a
// step log and of a checkpoint. Both are read here without Tutti's own readers, which might be
// wrong in the same way as its writers.
//
// Threads: one. Failure: std::runtime_error for a file that cannot be read or written; whatever
// nlohmann::json throws for one that is no JSON.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tutti::test::golden {

/// Names are unique and hold no ": ", values hold no line end.
using Lines = std::vector<std::pair<std::string, std::string>>;

/// tests/golden/ of the sources.
std::filesystem::path golden_folder();

std::string text_of(const Lines& lines);
/// Lines that begin with '#' are comments.
Lines lines_of_text(const std::string& text);
/// Empty where there is no such file.
Lines read_lines(const std::filesystem::path& file);
void write_lines(const std::filesystem::path& file, const std::string& comment, const Lines& lines);

/// The lines whose name begins with the prefix, without it; and the reverse.
Lines without_prefix(const std::string& prefix, const Lines& lines);
Lines with_prefix(const std::string& prefix, const Lines& lines);

/// What was changed, taken away, added or moved, with both values; "" where nothing was.
std::string differences(const Lines& golden, const Lines& now);

/// The first digits of the SHA-256 of so many bytes.
std::string short_digest(const void* data, std::size_t bytes);

Lines lines_of_log(const std::filesystem::path& file);
/// Manifest and tensors of one checkpoint, but for what names the machine that wrote it.
Lines lines_of_checkpoint(const std::filesystem::path& folder);
/// What the manifest of a checkpoint gives as its version.
int version_of_checkpoint(const std::filesystem::path& folder);

}  // namespace tutti::test::golden
