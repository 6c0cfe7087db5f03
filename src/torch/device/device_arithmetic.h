#pragma once

// What decides how a device rounds, besides its kernels, and the flags of libtorch's by which it
// computes the same bits in every run.
//
// Threads: any. Failure: Unsupported.

#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/group.h"

namespace tutti {

/// While one lives, libtorch takes the deterministic one where it has several algorithms, of CUDA's
/// libraries too, and refuses by its name an operator that has none. Of the whole process; what was
/// set before the first comes back when the last ends.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms();
  ~DeterministicAlgorithms();
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
};

/// Throws where CUDA's libraries were not told in time to compute the same bits in every run.
/// `name` begins errors.
void require_deterministic(c10::Device device, const std::string& name);

/// What has to be the same on all workers: the kind of device; where it is not the CPU, flags of
/// libtorch's; where it is a GPU of NVIDIA's, what it is, its driver and libraries.
std::vector<std::pair<std::string, std::string>> device_facts(c10::Device device);
/// By the name of a fact, how workers come to share it.
std::map<std::string, std::string> remedies_of_device_facts();

/// Says which workers of the group share a device, once. Collective, where models are on devices.
void tell_of_shared_devices(const Group& group, c10::Device device);

}  // namespace tutti
