#include "torch/run/model_facts.h"

#include <map>

#include "torch/model/arithmetic.h"

namespace tutti {

nlohmann::json structure_of(const torch::nn::Module& module) {
  auto modules = nlohmann::json::array();
  for (const auto& item : module.named_modules("", false)) modules.push_back(item.key());
  auto same_as = nlohmann::json::object();
  std::map<const void*, std::string> first;
  for (const auto& item : module.named_parameters()) {
    const auto [at, is_new] = first.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) same_as[item.key()] = at->second;
  }
  return {{"modules", modules}, {"same_as", same_as}};
}

std::string arithmetic_differences(const Checkpoint& checkpoint) {
  const auto& state = checkpoint.manifest().state;
  const auto found = state.find(kArithmetic);
  if (found == state.end()) return "";
  RunFingerprint then;
  for (const auto& [name, value] : found->second.items()) {
    if (value.is_string()) then[name] = value.get<std::string>();
  }
  return noted_differences(then, arithmetic_facts());
}

}  // namespace tutti
