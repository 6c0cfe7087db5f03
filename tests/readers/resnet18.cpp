// resnet18 WEIGHTS EXAMPLE: torchvision's ResNet-18 in C++. WEIGHTS has its parameters and buffers
// by Python's names, EXAMPLE an "input" and the "output" that Python computed; prints the largest
// difference to it.

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tutti/load_weights.h"

namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(int from, int to, int size, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int from, int to, int stride)
      : conv1(register_module("conv1", convolution(from, to, 3, stride))),
        bn1(register_module("bn1", nn::BatchNorm2d(to))),
        conv2(register_module("conv2", convolution(to, to, 3, 1))),
        bn2(register_module("bn2", nn::BatchNorm2d(to))) {
    if (stride == 1 && from == to) return;
    downsample = register_module(
        "downsample", nn::Sequential(convolution(from, to, 1, stride), nn::BatchNorm2d(to)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (downsample ? downsample->forward(x) : x));
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct ResNet18 : nn::Module {
  nn::Conv2d conv1{register_module(
      "conv1", nn::Conv2d(nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)))};
  nn::BatchNorm2d bn1{register_module("bn1", nn::BatchNorm2d(64))};
  nn::Sequential layer1{
      register_module("layer1", nn::Sequential(Block(64, 64, 1), Block(64, 64, 1)))};
  nn::Sequential layer2{
      register_module("layer2", nn::Sequential(Block(64, 128, 2), Block(128, 128, 1)))};
  nn::Sequential layer3{
      register_module("layer3", nn::Sequential(Block(128, 256, 2), Block(256, 256, 1)))};
  nn::Sequential layer4{
      register_module("layer4", nn::Sequential(Block(256, 512, 2), Block(512, 512, 1)))};
  nn::Linear fc{register_module("fc", nn::Linear(512, 1000))};
  torch::Tensor forward(const torch::Tensor& x) {
    const auto first = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    const auto last = layer4->forward(layer3->forward(layer2->forward(layer1->forward(first))));
    return fc(last.mean({2, 3}));
  }
};

struct Example : nn::Module {
  torch::Tensor input{register_buffer("input", torch::zeros({2, 3, 96, 96}))};
  torch::Tensor output{register_buffer("output", torch::zeros({2, 1000}))};
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: resnet18 WEIGHTS EXAMPLE");
  ResNet18 net;
  tutti::load_weights(net, argv[1]);
  Example example;
  tutti::load_weights(example, argv[2]);
  const torch::NoGradGuard no_grad;
  net.eval();
  const auto difference = (net.forward(example.input) - example.output).abs().max().item<double>();
  std::printf("difference %.3g\n", difference);
  return difference <= 1e-5 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
