#include "apps/tutti/compare/comparison.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "tutti/error.h"

namespace tutti::command {
namespace {

using Bytes = std::vector<std::byte>;

/// The distance of two tensors of one kind.
struct Distance {
  std::uint64_t elements = 0;  ///< that differ in their bytes
  double most = 0;             ///< |a − b|; NaN where an element that differs gives none
};

template <class Element>
double difference(const std::byte* a, const std::byte* b) {
  Element x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  return std::fabs(static_cast<double>(x) - static_cast<double>(y));
}

Distance distance(const Bytes& a, const Bytes& b, StoredType type) {
  Distance found;
  const std::size_t size = size_of(type);
  for (std::size_t at = 0; at < a.size(); at += size) {
    if (std::memcmp(&a[at], &b[at], size) == 0) continue;
    ++found.elements;
    const double apart = type == StoredType::F64   ? difference<double>(&a[at], &b[at])
                         : type == StoredType::F32 ? difference<float>(&a[at], &b[at])
                                                   : 0;
    if (std::isnan(apart) || apart > found.most) found.most = apart;  // NaN stays
  }
  return found;
}

std::string text_of(const Distance& distance, std::uint64_t elements, StoredType type) {
  std::string text =
      fmt::format("{} of {} differ", distance.elements, counted(elements, "element"));
  if (type == StoredType::F32 || type == StoredType::F64)
    text += std::isnan(distance.most) ? ", one of them by NaN"
                                      : fmt::format(", by at most {:.3g}", distance.most);
  return text;
}

void require_same_tensors(const SafetensorsFile& a, const SafetensorsFile& b,
                          const std::string& file) {
  const auto fail = [&](const std::string& name, const std::string& what) {
    throw InvalidArgument(
        fmt::format("the checkpoints are of other models: {} of {} {}", quoted(name), file, what));
  };
  for (const TensorEntry& tensor : a.tensors()) {
    const TensorEntry* other = b.find(tensor.name);
    if (other == nullptr) fail(tensor.name, "is only in A");
    if (other->type != tensor.type || other->shape != tensor.shape)
      fail(tensor.name, fmt::format("is {} in A, {} in B", describe(tensor.type, tensor.shape),
                                    describe(other->type, other->shape)));
  }
  for (const TensorEntry& tensor : b.tensors())
    if (a.find(tensor.name) == nullptr) fail(tensor.name, "is only in B");
}

void require_same_files(const Manifest& a, const Manifest& b) {
  const auto fail = [](const std::string& name, const char* where) {
    throw InvalidArgument(
        fmt::format("the checkpoints hold other files: {} is only in {}", quoted(name), where));
  };
  for (const auto& [name, digest] : a.files)
    if (!b.files.contains(name)) fail(name, "A");
  for (const auto& [name, digest] : b.files)
    if (!a.files.contains(name)) fail(name, "B");
}

/// One line for each tensor that differs.
void compare_file(const SafetensorsFile& a, const SafetensorsFile& b, const std::string& file,
                  std::vector<std::string>& differences) {
  for (const TensorEntry& tensor : a.tensors()) {
    Bytes in_a(tensor.bytes), in_b(tensor.bytes);
    a.read(tensor, in_a);
    b.read(*b.find(tensor.name), in_b);
    if (in_a == in_b) continue;
    const auto elements = tensor.bytes / size_of(tensor.type);
    differences.push_back(
        fmt::format("{} of {}: {}", quoted(tensor.name), file,
                    text_of(distance(in_a, in_b, tensor.type), elements, tensor.type)));
  }
}

/// Differences of the runs' states besides tensors.
std::vector<std::string> differences_of_state(const Manifest& a, const Manifest& b) {
  std::vector<std::string> differences;
  if (a.step != b.step)
    differences.push_back(fmt::format("step: {} in A, {} in B", a.step, b.step));
  const auto text = [](const Manifest& manifest, const std::string& key) {
    const auto at = manifest.state.find(key);
    constexpr std::size_t kMost = 40;
    if (at == manifest.state.end()) return std::string("absent");
    std::string value = at->second.dump();
    if (value.size() <= kMost) return value;
    return fmt::format("{}…", std::string_view(value).substr(0, kMost));
  };
  std::map<std::string, nlohmann::json> all = a.state;
  all.insert(b.state.begin(), b.state.end());
  for (const auto& [key, value] : all) {
    const auto in_a = a.state.find(key), in_b = b.state.find(key);
    if (in_a != a.state.end() && in_b != b.state.end() && in_a->second == in_b->second) continue;
    differences.push_back(
        fmt::format("state {}: {} in A, {} in B", quoted(key), text(a, key), text(b, key)));
  }
  return differences;
}

}  // namespace

Comparison compare_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  const Manifest &of_a = a.manifest(), &of_b = b.manifest();
  Comparison found{.text = facts_text(of_a.facts, of_b.facts)};
  require_same_files(of_a, of_b);
  std::vector<std::string> differences;
  std::size_t tensors = 0;
  for (const auto& [name, digest] : of_a.files) {
    const SafetensorsFile in_a = a.file(name), in_b = b.file(name);
    require_same_tensors(in_a, in_b, name);
    tensors += in_a.tensors().size();
    if (digest != of_b.files.at(name)) compare_file(in_a, in_b, name, differences);
  }
  const auto places = differences_of_state(of_a, of_b);
  found.equal = places.empty() && differences.empty();
  if (found.equal) {
    found.text += fmt::format("equal: step {}, {}\n", of_a.step, counted(tensors, "tensor"));
    return found;
  }
  if (!places.empty()) found.text += "the runs stand at other places:\n" + as_list(places);
  found.text += fmt::format("{} of {} differ{}\n", differences.size(), counted(tensors, "tensor"),
                            differences.empty() ? "" : ":") +
                as_list(differences);
  return found;
}

}  // namespace tutti::command
