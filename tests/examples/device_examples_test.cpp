// --device of the examples: on the test device, which is loaded before them as libtorch_cuda.so is
// where there is a GPU, and without any.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "examples/digits.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

class DeviceExamples : public ::testing::Test {
 protected:
  DeviceExamples() {
    std::filesystem::create_directory(data_);
    write_digits(data_, "train", 150);
    write_digits(data_, "t10k", 37);
  }
  /// `environment` is that of the workers alone.
  Finished run(int workers, std::vector<std::string> environment,
               const std::vector<std::string>& program_and_arguments) {
    std::vector<std::string> arguments{"run", "-n", std::to_string(workers), "env"};
    std::ranges::move(environment, std::back_inserter(arguments));
    std::ranges::copy(program_and_arguments, std::back_inserter(arguments));
    return run_command(arguments);
  }
  static std::vector<std::string> test_device(const std::string& held) {
    return {"LD_PRELOAD=" + program("libtest_device.so"), "TEST_DEVICE_HELD=" + held};
  }
  /// The digest that all workers which print one have.
  static std::string digest(const Finished& result) {
    EXPECT_EQ(result.status, 0) << result.err;
    const std::regex pattern("parameters sha256 ([0-9a-f]{64})");
    std::set<std::string> digests;
    for (auto at = std::sregex_iterator(result.out.begin(), result.out.end(), pattern);
         at != std::sregex_iterator(); ++at) {
      digests.insert((*at)[1]);
    }
    EXPECT_EQ(digests.size(), 1u) << result.out;
    return digests.empty() ? "" : *digests.begin();
  }
  std::vector<std::string> mnist(const std::string& device) {
    return {program("mnist_parallel"), data_, "2", "--device", device};
  }
  static std::vector<std::string> char_lm(const std::string& device) {
    return {program("char_lm"),
            "--text",
            TUTTI_SOURCE "/README.md",
            "--micro-batches",
            "8",
            "--steps",
            "3",
            "--rows",
            "2",
            "--length",
            "8",
            "--hidden",
            "12",
            "--sample",
            "5",
            "--device",
            device};
  }
  TemporaryFolder folder_;
  std::string data_ = folder_.file("data");
};

// promise: gpu#start, local_device.h#local_device
TEST_F(DeviceExamples, WithoutAnyNameTheLibraryToLoad) {
  for (const auto& arguments : {mnist("cuda"), char_lm("cuda")}) {
    const auto result = run(1, {"CUDA_VISIBLE_DEVICES="}, arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("LD_PRELOAD=…/torch/lib/libtorch_cuda.so"));
  }
}

TEST_F(DeviceExamples, ADeviceOfAnotherTypeIsNamed) {
  EXPECT_THAT(run(1, test_device("side"), mnist("cuda")).err,
              HasSubstr("--device cuda: libtorch's device here is test:0"));
  EXPECT_THAT(run(1, {}, mnist("gpu")).err, HasSubstr("--device gpu: "));
  EXPECT_THAT(run(1, {}, {program("mnist_parallel"), data_, "1", "--devise", "cpu"}).err,
              HasSubstr("usage: PROGRAM FOLDER EPOCHS [--device TYPE]"));
}

TEST_F(DeviceExamples, MnistHasTheBytesOfTheCpuOnADevice) {
  for (const int workers : {1, 3}) {
    const auto cpu = digest(run(workers, {}, mnist("cpu")));
    for (const char* const held : {"side", "default"}) {
      EXPECT_EQ(digest(run(workers, test_device(held), mnist("privateuseone"))), cpu) << held;
    }
  }
}

TEST_F(DeviceExamples, MnistOfATrainerHasTheBytesOfTheCpuOnAnyNumberOfWorkers) {
  const auto arguments = [&](const std::string& device) -> std::vector<std::string> {
    return {program("mnist"), data_, "2", "--device", device};
  };
  const auto cpu = digest(run(1, {}, arguments("cpu")));
  for (const int workers : {1, 2, 3}) {
    for (const char* const held : {"side", "default"}) {
      EXPECT_EQ(digest(run(workers, test_device(held), arguments("privateuseone"))), cpu) << held;
    }
  }
}

TEST_F(DeviceExamples, TheCharacterModelHasTheSameBytesOnAnyNumberOfWorkers) {
  for (const char* const pieces : {"--micro-batches", "--shards"}) {
    auto arguments = char_lm("privateuseone");
    arguments[3] = pieces;
    std::set<std::string> digests;
    for (const int workers : {1, 2, 3}) {
      for (const char* const held : {"side", "default"}) {
        digests.insert(digest(run(workers, test_device(held), arguments)));
      }
    }
    EXPECT_EQ(digests.size(), 1u) << pieces;
  }
}

}  // namespace
}  // namespace tutti::test
