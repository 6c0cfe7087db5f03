#include "run/files/manifest.h"

#include <functional>
#include <limits>

#include <gmock/gmock.h>

#include "kernels/hash.h"
#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

const std::string kHash(64, 'a');

Manifest sample() {
  return {.step = 200,
          .facts = {{"plan", "0x12"}, {"schlüssel \"q\"\n", "∞ \\"}},
          .state = {{"epoch", 3},
                    {"scale", 0.1},
                    {"tiny", 5e-324},
                    {"seed", std::numeric_limits<std::uint64_t>::max()},
                    {"nested", {{"a", {1, -2, nullptr, true}}}}},
          .files = {{"model.safetensors", {12, kHash}}},
          .run = "5eed"};
}

/// The text with its members changed by somebody who knows the format.
std::string resealed(const std::function<void(nlohmann::json&)>& change) {
  auto tree = nlohmann::json::parse(to_text(sample()));
  tree.erase("sha256");
  change(tree);
  std::string text = tree.dump(2);
  text.resize(text.size() - 2);
  text += ",\n";
  Sha256 hash;
  hash.update(text.data(), text.size());
  return text + "  \"sha256\": \"" + hash.hex() + "\"\n}\n";
}

template <class Expected = Corrupt>
std::string refusal(const std::string& text) {
  return text_of<Expected>([&] { parse_manifest(text, "m.json"); });
}
template <class Expected = Corrupt>
std::string refusal(const std::function<void(nlohmann::json&)>& change) {
  return refusal<Expected>(resealed(change));
}

TEST(Manifest, GivesBackEveryValue) {
  EXPECT_EQ(parse_manifest(to_text(sample()), "m"), sample());
  EXPECT_EQ(parse_manifest(resealed([](auto&) {}), "m"), sample());
}

TEST(Manifest, IsJsonInAReadableOrder) {
  const std::string text = to_text(sample());
  EXPECT_TRUE(nlohmann::json::accept(text));
  EXPECT_THAT(
      text, ::testing::StartsWith("{\n  \"format\": \"tutti checkpoint\",\n  \"version\": "
                                  "3,\n  \"step\": 200,\n  \"run\": \"5eed\",\n  \"facts\": {\n"));
}

TEST(Manifest, ForeignJsonIsRefused) {
  for (const char* text : {"", "{}", "[]", "null", "{\"format\": \"pt\"}", "not json"})
    EXPECT_EQ(refusal(text),
              "m.json does not end with its own SHA-256: it was cut, or is no manifest of Tutti");
  EXPECT_THAT(refusal([](auto& m) { m["format"] = "other"; }), HasSubstr("its format is another"));
}

TEST(Manifest, EverythingHasToBeThereAndNothingElse) {
  for (const char* key : {"format", "version", "step", "run", "facts", "state", "files"}) {
    EXPECT_EQ(refusal([&](auto& m) { m.erase(key); }),
              std::string("m.json has no \"") + key + "\"");
    EXPECT_EQ(refusal([&](auto& m) { m[key] = nullptr; }),
              std::string("m.json has a \"") + key + "\" of wrong kind");
  }
  EXPECT_EQ(refusal([](auto& m) { m["more"] = 1; }), "m.json has \"more\", which is not known");
  EXPECT_EQ(refusal<Unsupported>([](auto& m) { m["version"] = 4; }),
            "m.json has version 4; this build reads version 3");
  EXPECT_EQ(refusal<Unsupported>([](auto& m) { m["version"] = 2; }),
            "m.json has version 2; this build reads version 3, whose options and files have other "
            "names: resume with the Tutti that wrote it");
  EXPECT_THAT(refusal([](auto& m) { m["step"] = -1; }), HasSubstr("\"step\" of wrong kind"));
  EXPECT_THAT(refusal([](auto& m) { m["step"] = 1.0; }), HasSubstr("\"step\" of wrong kind"));
  EXPECT_THAT(refusal([](auto& m) { m["step"] = std::uint64_t{1} << 63; }),
              HasSubstr("which is too large"));
  EXPECT_EQ(refusal([](auto& m) { m["facts"]["n"] = 8; }),
            "m.json has a fact \"n\" that is no text");
}

TEST(Manifest, FilesAreNamedAndDescribedProperly) {
  for (const char* name : {"../../etc/passwd", "a/b", ".", "..", ".x", "", "manifest.json"})
    EXPECT_THAT(refusal([&](auto& m) { m["files"][name] = m["files"]["model.safetensors"]; }),
                HasSubstr("which is no name for a file"));
  const std::string text = "m.json does not give bytes and sha256 of \"model.safetensors\"";
  const auto change = [&](const std::function<void(nlohmann::json&)>& spoil) {
    return refusal([&](auto& m) { spoil(m["files"]["model.safetensors"]); });
  };
  EXPECT_EQ(change([](auto& f) { f = 12; }), text);
  EXPECT_EQ(change([](auto& f) { f["bytes"] = -1; }), text);
  EXPECT_EQ(change([](auto& f) { f["bytes"] = "1"; }), text);
  EXPECT_EQ(change([](auto& f) { f["sha256"] = std::string(64, 'A'); }), text);
  EXPECT_EQ(change([](auto& f) { f["sha256"] = std::string(63, 'a'); }), text);
  EXPECT_EQ(change([](auto& f) { f["more"] = 1; }), text);
}

TEST(Manifest, DuplicateKeysAreRefused) {
  std::string text = to_text(sample());
  const auto at = text.find("\"step\": 200,");
  text.insert(at, "\"step\": 100, ");
  const auto tail = text.rfind("  \"sha256\"");
  text.resize(tail);
  Sha256 hash;
  hash.update(text.data(), text.size());
  text += "  \"sha256\": \"" + hash.hex() + "\"\n}\n";
  EXPECT_EQ(refusal(text), "m.json has \"step\" twice");
}

TEST(RunFingerprint, DifferencesAreNamed) {
  const RunFingerprint run = {{"seed", "1"}, {"shards", "4"}, {"threads", "1"}};
  EXPECT_EQ(facts_diff(run, run), "");
  EXPECT_EQ(facts_diff({{"a", "1"}, {"b", "2"}}, {{"b", "3"}, {"c", "4"}},
                       {.first = "in A", .second = "in B"}),
            "a is 1 in A, not set in B\nb is 2 in A, 3 in B\nc is not set in A, 4 in B");
  EXPECT_EQ(facts_diff({{"shards", "8"}, {"seed", "1"}, {"clip", "1.5"}}, run),
            "clip is 1.5 in the checkpoint, not set here\n"
            "shards is 8 in the checkpoint, 4 here\n"
            "threads is not set in the checkpoint, 1 here");
}

// They were cut before the part that differed.
TEST(RunFingerprint, LongOnesAreShownFromWhereTheyDiffer) {
  const std::string begin = "topk:0.01, error feedback on, per group, fusion 2097152, clamp 0";
  EXPECT_EQ(
      facts_diff({{"codec", begin + ", momentum 0.9"}}, {{"codec", begin + ", momentum 0.8"}}),
      "codec is momentum 0.9 in the checkpoint, momentum 0.8 here");
  EXPECT_EQ(facts_diff({{"codec", begin + ", momentum 0.9"}}, {{"codec", begin}}),
            "codec is clamp 0, momentum 0.9 in the checkpoint, clamp 0 here");
}

TEST(RunFingerprint, AtMostFiveLinesAreShown) {
  RunFingerprint saved, run;
  for (int i = 0; i < 9; ++i) saved[std::to_string(i)] = "a";
  EXPECT_THAT(facts_diff(saved, run), ::testing::EndsWith("\n… and 4 more"));
  for (int i = 0; i < 4; ++i) run[std::to_string(i)] = "a";
  EXPECT_EQ(facts_diff(saved, run).find("more"), std::string::npos) << "five fit";
}

TEST(RunFingerprint, StrangeValuesStayOnOneShortLine) {
  const std::string diff =
      facts_diff({{"a", "\x1b[2J\n"}, {"b", std::string(1000, 'x')}, {"c", ""}}, {});
  EXPECT_THAT(diff, HasSubstr("a is \"?[2J?\" in the checkpoint"));
  EXPECT_THAT(diff, HasSubstr("c is \"\" in the checkpoint"));
  EXPECT_LT(diff.size(), 300U);
}

}  // namespace
}  // namespace tutti::test
