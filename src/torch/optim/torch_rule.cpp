#include "torch/optim/torch_rule.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <typeinfo>

#include "sync/plan/tile_share.h"
#include "torch/model/same_bytes.h"
#include "torch/model/threads.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// The matrix that a rule is tried out on: two tiles and a bit.
constexpr std::int64_t kRows = 67;
constexpr std::int64_t kColumns = 129;
constexpr int kSteps = 4;

std::string name_of(const torch::optim::Optimizer& optimizer) {
  const auto& reference = optimizer;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(reference).name(), nullptr, nullptr, &status), &std::free);
  std::string name = text ? text.get() : typeid(reference).name();
  const std::string_view torch = "torch::optim::";
  return name.starts_with(torch) ? name.substr(torch.size()) : name;
}

torch::Tensor draw(torch::ScalarType type, at::Generator& generator) {
  return torch::randn({kRows, kColumns}, generator).to(type);
}

std::vector<torch::Tensor> split(const torch::Tensor& matrix) {
  return matrix.flatten().clone().split(kTile);
}

OptimizerState copy_of(const OptimizerState& contents) {
  OptimizerState copy{.tensors = {}, .numbers = contents.numbers};
  for (const auto& [name, tensor] : contents.tensors) {
    copy.tensors.emplace_back(name, tensor.clone());
  }
  return copy;
}

}  // namespace

Optimizer::Rule torch_optimizer(TorchOptimizerFactory make) {
  if (!make) throw InvalidArgument("torch_optimizer: there is no factory");
  const auto rule = std::make_shared<const TorchRule>(std::move(make));
  return TorchOptim{rule->text(), rule};
}

TorchRule::TorchRule(TorchOptimizerFactory make) : make_(std::move(make)) {
  const auto one = this->make({torch::zeros({1}, torch::kCPU)});
  text_ = name_of(*one);
  try {
    for (const auto& group : one->param_groups()) group.options().get_lr();
    learning_rate_ = one->param_groups().front().options().get_lr();
    text_ = fmt::format("{} {}", text_, options_text(*one));
    const SingleThread one_thread;
    for (const auto type : {torch::kFloat32, torch::kFloat64}) try_out(type);
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        fmt::format("{} cannot be run per tile: {}", text_, error.what_without_backtrace()));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{} cannot be run per tile: {}", text_, error.what()));
  }
}

std::unique_ptr<torch::optim::Optimizer> TorchRule::make(
    const std::vector<torch::Tensor>& tensors) const {
  auto optimizer = make_(tensors);
  if (!optimizer) throw InvalidArgument("torch_optimizer: its factory made nothing");
  if (optimizer->param_groups().size() != 1 ||
      optimizer->param_groups().front().params().size() != tensors.size()) {
    throw InvalidArgument(
        "torch_optimizer: its factory must make one group of the tensors it is given");
  }
  return optimizer;
}

void TorchRule::check_numbers(const nlohmann::json& numbers) const {
  const auto same_kind = [](const nlohmann::json& a, const nlohmann::json& b) {
    return a.is_boolean() == b.is_boolean() && a.is_number_integer() == b.is_number_integer() &&
           a.is_number() == b.is_number();
  };
  bool same = numbers.is_object() && numbers.size() == numbers_.size();
  for (const auto& [name, number] : numbers_.items()) {
    same = same && numbers.contains(name) && same_kind(numbers[name], number);
  }
  if (same) return;
  throw InvalidArgument(fmt::format("the numbers {} are not those of {}, such as {}",
                                    numbers.dump(), text_, numbers_.dump()));
}

void TorchRule::replace_state(torch::optim::Optimizer& optimizer, const torch::Tensor& tensor,
                              const OptimizerState& contents) const {
  tutti::replace_state(optimizer, tensor, state_from(*prototype_, contents));
}

/// Four steps with a matrix as a whole beside its tiles.
void TorchRule::try_out(torch::ScalarType type) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto whole = draw(type, generator);
  const auto tiles = split(whole);
  const auto idle = torch::ones({5}, type);
  auto with_idle = tiles;
  with_idle.push_back(idle);
  const auto together = make({whole});
  const auto apart = make(with_idle);
  std::vector<std::optional<OptimizerState>> moved(tiles.size());
  for (int step = 1; step <= kSteps; ++step) {
    const auto gradient = draw(type, generator);
    const auto pieces = split(gradient);
    whole.mutable_grad() = gradient;
    for (std::size_t t = 0; t < tiles.size(); ++t) tiles[t].mutable_grad() = pieces[t];
    together->step();
    apart->step();
    if (!same_bytes(whole.flatten(), torch::cat(tiles))) {
      throw InvalidArgument(
          "it gives other bytes when a tensor is cut, so it is not element-wise (LBFGS, LAMB and "
          "LARS are not, nor is what draws random numbers)");
    }
    if (!same_bytes(idle, torch::ones({5}, type))) {
      throw InvalidArgument("it changes a tensor that has no gradient");
    }
    for (std::size_t t = 0; t < tiles.size(); ++t) try_state(*apart, tiles[t], moved[t]);
  }
}

/// The optimizer's state of the tile is moved when it is first seen, and must stay there.
void TorchRule::try_state(torch::optim::Optimizer& optimizer, const torch::Tensor& tile,
                          std::optional<OptimizerState>& moved) {
  const auto* const state = kept_of(optimizer, tile);
  if (state == nullptr) return;
  const auto contents = copy_of(contents_of(*state));
  take_names(contents, tile);
  if (!prototype_) prototype_ = state->clone();
  if (!moved) {
    moved = contents;
    return replace_state(optimizer, tile, contents);
  }
  for (std::size_t k = 0; k < states_.size(); ++k) {
    if (same_bytes(contents.tensors[k].second, moved->tensors[k].second)) continue;
    throw InvalidArgument(fmt::format("its state \"{}\" does not stay in one place", states_[k]));
  }
}

/// Every state has the same tensors, each like the parameter.
void TorchRule::take_names(const OptimizerState& contents, const torch::Tensor& tile) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : contents.tensors) {
    names.push_back(name);
    if (tensor.sizes() == tile.sizes() && tensor.scalar_type() == tile.scalar_type()) continue;
    throw InvalidArgument(
        fmt::format("its state \"{}\" has another size or type than the parameter", name));
  }
  if (!prototype_) {
    states_ = names;
    numbers_ = contents.numbers;
  }
  if (names != states_) throw InvalidArgument("its state has other tensors after some steps");
}

}  // namespace tutti
