#include "torch/optim/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "tutti/error.h"

namespace tutti {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// An archive that is written can only be read once it was saved.
InputArchive readable(OutputArchive& written) {
  std::stringstream bytes;
  written.save_to(bytes);
  InputArchive archive;
  archive.load_from(bytes);
  return archive;
}

template <class Source>
InputArchive archive_of(const Source& source) {
  OutputArchive archive;
  source.serialize(archive);
  return readable(archive);
}

nlohmann::json number_of(const std::string& name, const torch::IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  throw InvalidArgument(fmt::format("its state \"{}\" is neither a number nor a tensor but {}",
                                    name, value.tagKind()));
}

torch::IValue value_of(const nlohmann::json& number) {
  if (number.is_boolean()) return number.get<bool>();
  if (number.is_number_integer()) return number.get<std::int64_t>();
  return number.get<double>();
}

std::string text_of(const torch::IValue& value) {
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isTuple()) {
    std::string text;
    for (const auto& element : value.toTupleRef().elements()) {
      text += (text.empty() ? "" : ", ") + text_of(element);
    }
    return "(" + text + ")";
  }
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

OptimizerState contents_of(const torch::optim::OptimizerParamState& state) {
  auto archive = archive_of(state);
  auto names = archive.keys();
  std::sort(names.begin(), names.end());
  OptimizerState contents{.tensors = {}, .numbers = nlohmann::json::object()};
  for (const auto& name : names) {
    torch::IValue value;
    archive.read(name, value);
    if (value.isTensor()) {
      contents.tensors.emplace_back(name, value.toTensor());
    } else {
      contents.numbers[name] = number_of(name, value);
    }
  }
  return contents;
}

std::unique_ptr<torch::optim::OptimizerParamState> state_from(
    const torch::optim::OptimizerParamState& prototype, const OptimizerState& contents) {
  OutputArchive written;
  for (const auto& [name, tensor] : contents.tensors) {
    written.write(name, torch::IValue(torch::empty({0}, tensor.options())));
  }
  for (const auto& [name, number] : contents.numbers.items()) written.write(name, value_of(number));
  auto archive = readable(written);
  auto state = prototype.clone();
  state->serialize(archive);
  // The state took over the archive's tensors: what they become, its own do.
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : contents.tensors) {
    torch::IValue value;
    archive.read(name, value);
    value.toTensor().set_(tensor);
  }
  return state;
}

const torch::optim::OptimizerParamState* kept_of(const torch::optim::Optimizer& optimizer,
                                                 const torch::Tensor& tensor) {
  const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

void replace_state(torch::optim::Optimizer& optimizer, const torch::Tensor& tensor,
                   std::unique_ptr<torch::optim::OptimizerParamState> state) {
  optimizer.state()[tensor.unsafeGetTensorImpl()] = std::move(state);
}

std::string options_text(const torch::optim::Optimizer& optimizer) {
  auto archive = archive_of(optimizer.param_groups().front().options());
  std::string text;
  for (const auto& name : archive.keys()) {
    torch::IValue value;
    archive.read(name, value);
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, text_of(value));
  }
  return text;
}

}  // namespace tutti
