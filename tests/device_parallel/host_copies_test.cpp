// What comes to the host and what leaves it is on two streams, in an order where both meet.

#include "torch/model/host_copies.h"

#include "device_parallel/device_workers.h"

namespace tutti::test::host_copies_cases {
namespace {

/// `body` has the copies of a model of one parameter, whose elements are 1.
void with_copies(const std::function<void(HostCopies&, const torch::Tensor& parameter)>& body) {
  for (const auto held : kProfiles) {
    on_device_workers(1, held, [&](const Job& job) {
      const auto parameter = torch::ones({64}, torch::TensorOptions(local_device(job)));
      const WrappedModel model(NamedTensors{{"a", parameter}}, ParameterRoles());
      HostCopies copies(model, Group(job), std::nullopt, "model");
      body(copies, parameter);
    });
  }
}

void expect_all(const torch::Tensor& tensor, float value) {
  EXPECT_TRUE(torch::equal(tensor.cpu(), torch::full({64}, value))) << tensor.cpu()[0];
}

TEST(HostCopies, MayBeWrittenWhenSumsHaveLeft) {
  with_copies([](HostCopies& copies, const torch::Tensor& parameter) {
    copies.of_parameter(0).fill_(7);
    copies.sums().copy(copies.of_parameter(0), parameter);
    copies.settle();
    copies.of_parameter(0).fill_(8);
    test_device::synchronize();
    expect_all(parameter, 7);
  });
}

TEST(HostCopies, BecomeParametersWhenSumsHaveLeft) {
  with_copies([](HostCopies& copies, const torch::Tensor& parameter) {
    copies.of_parameter(0).fill_(7);
    const auto sum = torch::zeros_like(parameter);
    copies.sums().copy(copies.of_parameter(0), sum);
    copies.fetch_parameters();
    expect_all(copies.of_parameter(0), 1);
    test_device::synchronize();
    expect_all(sum, 7);
  });
}

}  // namespace
}  // namespace tutti::test::host_copies_cases
