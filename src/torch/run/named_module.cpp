#include "tutti/named_module.h"

#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <functional>
#include <vector>

#include "torch/model/type_text.h"
#include "tutti/error.h"

namespace tutti {
namespace {

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool() || value.isString() ||
         value.isIntList() || value.isDoubleList() || value.isBoolList();
}

/// The values of attributes that are neither tensors nor modules, in the order of the script's own.
std::vector<c10::IValue> numbers_of(const torch::jit::Module& script) {
  std::vector<c10::IValue> numbers;
  for (const auto& value : script.attributes()) {
    if (is_number(value)) numbers.push_back(value.deepcopy());
  }
  return numbers;
}

/// Nobody carries numbers from a shard to the next one, which another worker may compute.
void require_unchanged(const std::vector<c10::IValue>& numbers, const torch::jit::Module& script,
                       const std::string& method) {
  if (numbers_of(script) == numbers) return;
  auto before = numbers.begin();
  for (const auto& item : script.named_attributes()) {
    if (!is_number(item.value) || *before++ == item.value) continue;
    throw InvalidArgument(fmt::format(
        "{}() of the script has changed its attribute \"{}\", which is no tensor: other workers do "
        "not have it, and no checkpoint: let it be a buffer",
        method, item.name));
  }
}

/// What a name's last part is called on, which is made where it is not there.
class ListedModule final : public torch::nn::Module {
 public:
  ListedModule& within(const std::string& child, const std::string& full) {
    if (auto* const found = named_children().find(child)) {
      return *std::dynamic_pointer_cast<ListedModule>(*found);
    }
    require_free(child, full);
    return *register_module(child, std::make_shared<ListedModule>());
  }
  void require_free(const std::string& name, const std::string& full) const {
    const bool is_taken = named_children().contains(name) ||
                          named_parameters(false).contains(name) ||
                          named_buffers(false).contains(name);
    if (!is_taken && !name.empty()) return;
    throw InvalidArgument(
        name.empty()
            ? fmt::format("module_of(): \"{}\" has an empty part", full)
            : fmt::format("module_of(): \"{}\" is there twice, or as a tensor and as what has some",
                          full));
  }
};

void add(ListedModule& root, const std::pair<std::string, torch::Tensor>& item,
         const std::function<void(ListedModule&, const std::string&)>& enter) {
  const auto& [full, tensor] = item;
  if (!tensor.defined()) {
    throw InvalidArgument(fmt::format("module_of(): \"{}\" is undefined", full));
  }
  auto* at = &root;
  std::size_t begin = 0;
  for (std::size_t dot = 0; (dot = full.find('.', begin)) != std::string::npos; begin = dot + 1) {
    at = &at->within(full.substr(begin, dot - begin), full);
  }
  const auto name = full.substr(begin);
  at->require_free(name, full);
  enter(*at, name);
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(const torch::jit::Module& script)
    : ScriptModuleImpl(script, Part{}) {
  if (!parameters().empty()) return;
  throw InvalidArgument(
      "the script has no parameters; torch.jit.freeze() makes constants of them: save it without");
}

ScriptModuleImpl::ScriptModuleImpl(const torch::jit::Module& script, Part part)
    : torch::nn::Module(script.type()->name() ? script.type()->name()->name() : "script"),
      script_(script) {
  for (const auto& item : script_.named_parameters(false)) {
    register_parameter(item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : script_.named_buffers(false)) register_buffer(item.name, item.value);
  for (const auto& item : script_.named_children()) {
    register_module(item.name,
                    std::shared_ptr<ScriptModuleImpl>(new ScriptModuleImpl(item.value, part)));
  }
}

c10::IValue ScriptModuleImpl::forward(std::vector<c10::IValue> inputs) {
  return run("forward", std::move(inputs));
}

c10::IValue ScriptModuleImpl::run(const std::string& method, std::vector<c10::IValue> inputs) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  const auto called = script_.get_method(method);
  require_own_parameters();
  const auto numbers = numbers_of(script_);
  try {
    auto result = called(std::move(inputs));
    take_buffers(true);
    require_own_parameters();
    require_unchanged(numbers, script_, method);
    return result;
  } catch (...) {
    take_buffers(false);
    throw;
  }
}

void ScriptModuleImpl::require_own_parameters() const {
  for (const auto& item : named_parameters(false)) {
    if (script_.attr(item.key()).toTensor().is_same(item.value())) continue;
    throw InvalidArgument(fmt::format(
        "the script has another tensor as its parameter \"{}\" than when ScriptModule was made, "
        "which nobody trains: make a ScriptModule of the script as it is",
        item.key()));
  }
  for (const auto& child : children()) {
    std::static_pointer_cast<ScriptModuleImpl>(child)->require_own_parameters();
  }
}

/// A forward may assign a buffer, self.mean = …, which makes it another tensor. With `values` the
/// buffer gets those of that tensor.
void ScriptModuleImpl::take_buffers(bool values) {
  const torch::NoGradGuard no_grad;
  for (auto& item : named_buffers(false)) {
    const auto assigned = script_.attr(item.key()).toTensor();
    if (assigned.is_same(item.value())) continue;
    script_.setattr(item.key(), item.value());
    if (!values) continue;
    if (assigned.sizes() != item.value().sizes() ||
        assigned.scalar_type() != item.value().scalar_type()) {
      throw InvalidArgument(
          fmt::format("the script has assigned its buffer \"{}\", which is {}, {}", item.key(),
                      type_text(item.value()), type_text(assigned)));
    }
    item.value().copy_(assigned);
  }
  for (const auto& child : children()) {
    std::static_pointer_cast<ScriptModuleImpl>(child)->take_buffers(values);
  }
}

void ScriptModuleImpl::train(bool on) {
  torch::nn::Module::train(on);  // the parts', each its own
  if (script_.hasattr("training")) script_.setattr("training", on);
}

bool ScriptModuleImpl::is_training() const noexcept {
  return script_.hasattr("training") ? script_.attr("training").toBool()
                                     : torch::nn::Module::is_training();
}

std::shared_ptr<torch::nn::Module> module_of(
    const std::vector<std::pair<std::string, torch::Tensor>>& parameters,
    const std::vector<std::pair<std::string, torch::Tensor>>& buffers) {
  const auto root = std::make_shared<ListedModule>();
  for (const auto& item : parameters) {
    add(*root, item, [&](ListedModule& at, const std::string& name) {
      at.register_parameter(name, item.second, item.second.requires_grad());
    });
  }
  for (const auto& item : buffers) {
    add(*root, item,
        [&](ListedModule& at, const std::string& name) { at.register_buffer(name, item.second); });
  }
  return root;
}

}  // namespace tutti
