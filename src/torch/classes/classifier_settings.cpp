#include "torch/classes/classifier_settings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "kernels/rules/registry.h"
#include "torch/classes/class_sampler.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti {
namespace {

constexpr std::int64_t kPieces = 64;
/// Rows of a piece are numbered by 32 bits.
constexpr std::int64_t kMaxPiece = std::int64_t{1} << 30;

UpdateRule rule_of(const Optimizer::Rule& rule) {
  const Optimizer checked(rule);
  auto found = update_rule_of(checked.rule_of("weight"));
  if (found) return std::move(*found);
  throw Unsupported(
      fmt::format("a classifier updates its own weights: its rule is one of {}", names_of_rules()));
}

std::string text_of(const std::optional<Margin>& margin) {
  if (!margin) return "none";
  return fmt::format("{} {} {} scale {}", margin->m1, margin->m2, margin->m3, margin->scale);
}

const char* text_of(LossReduction reduction) {
  if (reduction == LossReduction::mean) return "mean";
  return reduction == LossReduction::sum ? "sum" : "none";
}

}  // namespace

ClassifierSettings::ClassifierSettings(std::int64_t in, std::int64_t of_classes,
                                       const Optimizer::Rule& by,
                                       const ParallelCrossEntropyOptions& given)
    : features(in), classes(of_classes), options(given), rule(rule_of(by)) {
  const auto refuse = [&](const std::string& why) { throw InvalidArgument(label() + ": " + why); };
  if (features < 1) refuse(fmt::format("{} features: at least 1", features));
  if (classes < 1) refuse(fmt::format("{} classes: at least 1", classes));
  if (!(options.sample_rate > 0 && options.sample_rate <= 1)) {
    refuse(fmt::format("sample_rate must be above 0 and at most 1, not {}", options.sample_rate));
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1)) {
    refuse(fmt::format("label_smoothing must be in [0, 1), not {}", options.label_smoothing));
  }
  if (options.ignore_index >= 0 && options.ignore_index < classes) {
    refuse(fmt::format("ignore_index {} is one of the {} classes", options.ignore_index, classes));
  }
  if (options.margin) {
    const auto& margin = *options.margin;
    if (!(margin.scale > 0) || !std::isfinite(margin.scale) || !std::isfinite(margin.m1) ||
        !std::isfinite(margin.m2) || !std::isfinite(margin.m3)) {
      refuse("a margin's numbers must be finite, and its scale positive");
    }
  }
  if (options.pieces < 0 || options.pieces > classes) {
    refuse(fmt::format("{} pieces of {} classes", options.pieces, classes));
  }
  if (options.pieces == 0) options.pieces = std::min(kPieces, classes);
  if (classes / options.pieces >= kMaxPiece) {
    refuse(fmt::format("{} classes in {} pieces: a piece has less than {}; give more pieces",
                       classes, options.pieces, kMaxPiece));
  }
  if (options.dtype != torch::kFloat32 && options.dtype != torch::kFloat64 &&
      options.dtype != torch::kBFloat16) {
    throw Unsupported(fmt::format("{}: weights of {}; float32, float64 and bfloat16 are", label(),
                                  c10::toString(options.dtype)));
  }
  computed = options.dtype == torch::kBFloat16 ? torch::kFloat32 : options.dtype;
}

std::pair<std::int64_t, std::int64_t> ClassifierSettings::pieces_of(int member, int members) const {
  return share_of(options.pieces, member, members);
}

std::pair<std::int64_t, std::int64_t> ClassifierSettings::classes_of(std::int64_t piece) const {
  return share_of(classes, piece, options.pieces);
}

std::int64_t ClassifierSettings::piece_of(std::int64_t label) const {
  const auto size = classes / options.pieces;
  const auto larger = classes % options.pieces;  // these have one class more
  const auto in_larger = larger * (size + 1);
  return label < in_larger ? label / (size + 1) : larger + (label - in_larger) / size;
}

std::uint64_t ClassifierSettings::bytes_per_class() const {
  return static_cast<std::uint64_t>(features) *
         (c10::elementSize(options.dtype) + rule.states.size() * c10::elementSize(computed));
}

std::uint64_t ClassifierSettings::bytes_of(int member, int members) const {
  const auto [first, last] = pieces_of(member, members);
  if (first == last) return 0;
  return static_cast<std::uint64_t>(classes_of(last - 1).second - classes_of(first).first) *
         bytes_per_class();
}

std::int64_t ClassifierSettings::taking_part(std::span<const std::int64_t> labels,
                                             bool samples_classes) const {
  if (!samples_classes) return classes;
  std::vector<std::int64_t> present(labels.begin(), labels.end());
  std::ranges::sort(present);
  const auto repeated = std::ranges::unique(present);
  present.erase(repeated.begin(), repeated.end());
  std::int64_t all = 0;
  for (std::int64_t piece = 0; piece < options.pieces; ++piece) {
    const auto [first, last] = classes_of(piece);
    const auto here =
        std::ranges::lower_bound(present, last) - std::ranges::lower_bound(present, first);
    all += sampled_count(last - first, options.sample_rate, here);
  }
  return all;
}

RunFingerprint ClassifierSettings::facts() const {
  return {{"features", std::to_string(features)},
          {"classes", std::to_string(classes)},
          {"pieces", std::to_string(options.pieces)},
          {"rule", rule.text},
          {"margin", text_of(options.margin)},
          {"label_smoothing", fmt::format("{}", options.label_smoothing)},
          {"ignore_index", std::to_string(options.ignore_index)},
          {"reduction", text_of(options.reduction)},
          {"sample_rate", fmt::format("{}", options.sample_rate)},
          {"seed", std::to_string(options.seed)},
          {"dtype", c10::toString(options.dtype)}};
}

std::string ClassifierSettings::label() const {
  return fmt::format("classifier \"{}\"", options.name);
}

ClassifierMemory classifier_memory(int members, std::int64_t features, std::int64_t classes,
                                   const Optimizer::Rule& rule,
                                   const ParallelCrossEntropyOptions& options) {
  if (members < 1) throw InvalidArgument(fmt::format("{} members", members));
  const ClassifierSettings settings(features, classes, rule, options);
  ClassifierMemory memory;
  for (int member = 0; member < members; ++member) {
    const auto bytes = settings.bytes_of(member, members);
    memory.of_all += bytes;
    memory.largest_member = std::max(memory.largest_member, bytes);
  }
  return memory;
}

}  // namespace tutti
