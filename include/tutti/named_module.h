#pragma once

// Models that are no torch::nn::Module, as ones that a Trainer, a DataParallel, load_weights() and
// evaluate() take: a TorchScript module, defined in Python perhaps, or any list of tensors.
//
// Threads: as torch::nn::Module. Failure: as said.

#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// A TorchScript module's parameters, buffers, submodules and modes under their names: the same
/// tensors, not copies, so what is trained is what the script computes with and what
/// torch::jit::Module::save() writes for Python.
///
///   auto script = torch::jit::load("model.pt");
///   tutti::ScriptModule model(script);
///   tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 1e-3}, {.shards = 8});
///   … model->forward({x}).toTensor() …
///   script.save("trained.pt");
class ScriptModuleImpl : public torch::nn::Module {
 public:
  /// Keeps a reference to the script. Parameters and submodules that it gets later are none of the
  /// model's. InvalidArgument for a script whose parameters are constants, as torch.jit.freeze()
  /// makes them.
  explicit ScriptModuleImpl(const torch::jit::Module& script);

  /// The script's forward(), or another method of its. It runs as it is written: what TorchScript's
  /// executor would make of it after some calls rounds otherwise, and the numbers would depend on
  /// how many shards a worker has computed. A buffer that it assigns, self.mean = …, is written
  /// to: it stays the tensor that others know. InvalidArgument where it has changed an attribute
  /// that is a number, a string or a list of numbers, which neither other workers nor checkpoints
  /// have, or where the script has got another tensor as a parameter.
  c10::IValue forward(std::vector<c10::IValue> inputs);
  c10::IValue run(const std::string& method, std::vector<c10::IValue> inputs);

  const torch::jit::Module& script() const { return script_; }

  void train(bool on = true) override;
  bool is_training() const noexcept override;

 private:
  struct Part {};
  ScriptModuleImpl(const torch::jit::Module& script, Part part);
  void require_own_parameters() const;
  void take_buffers(bool values);

  torch::jit::Module script_;
};
TORCH_MODULE(ScriptModule);

/// A module that has these tensors, not copies of them. A name with dots is that of a submodule's:
/// "block.weight" is the parameter "weight" of "block". It has to outlive the Trainer or
/// DataParallel that is made of it. InvalidArgument for a name that is empty, stands there twice,
/// or is a tensor's and a submodule's, and for an undefined tensor.
std::shared_ptr<torch::nn::Module> module_of(
    const std::vector<std::pair<std::string, torch::Tensor>>& parameters,
    const std::vector<std::pair<std::string, torch::Tensor>>& buffers = {});

}  // namespace tutti
