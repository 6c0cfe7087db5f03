#pragma once

// Small models of random cases, each with its loss for one piece of data.

#include "exactness/random_case.h"
#include "torch/exact_cases.h"
#include "tutti/pipeline.h"

namespace tutti::test::exact {

/// What a piece's data depend on, and the tensors that it carries from step to step, if it does.
struct RandomPiece {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t index = 0;
  std::int64_t rows = 1;
  std::function<torch::Tensor(const std::string& name, const torch::Tensor& init)> state = {};
};

struct RandomTask {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const RandomPiece&)> loss;
  /// Where a pipeline can have the model: what its first layer takes, its layers, and the loss of
  /// what the last one gives.
  std::function<torch::Tensor(const RandomPiece&)> input = {};
  std::vector<PipelineLayer> layers = {};
  std::function<torch::Tensor(const torch::Tensor&)> loss_of = {};
};

/// A task whose loss is found layer by layer.
inline RandomTask layered_task(std::shared_ptr<torch::nn::Module> module,
                               std::function<torch::Tensor(const RandomPiece&)> input,
                               std::vector<PipelineLayer> layers,
                               std::function<torch::Tensor(const torch::Tensor&)> loss_of) {
  const auto loss = [input, layers, loss_of](const RandomPiece& piece) {
    TensorList x = {input(piece)};
    for (const auto& layer : layers) x = layer(x);
    return loss_of(x[0]);
  };
  return {std::move(module), loss, std::move(input), std::move(layers), std::move(loss_of)};
}

inline PipelineLayer layer_of(torch::nn::AnyModule module) {
  return [module = std::move(module)](const TensorList& x) mutable -> TensorList {
    return {module.forward(x[0])};
  };
}

inline torch::ScalarType dtype_of(const Choices& one) {
  if (one.is("dtype", "float64")) return torch::kFloat64;
  if (one.is("dtype", "bfloat16")) return torch::kBFloat16;
  return one.is("dtype", "half") ? torch::kHalf : torch::kFloat32;
}

/// Any layers one after the other, and a buffer that nothing changes.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(bool has_constants) {
    if (!has_constants) return;
    scale = register_buffer("scale", torch::randn({7}));
  }
  torch::Tensor loss_of(const torch::Tensor& y) const {
    return (scale.defined() ? y * scale.square().sum() : y).square().mean();
  }
  template <class Layer>
  void add(const std::string& name, Layer layer) {
    if (!named_children().contains(name)) register_module(name, layer);
    layers.push_back(layer_of(torch::nn::AnyModule(layer)));
  }
  torch::Tensor scale;
  std::vector<PipelineLayer> layers;
};
TORCH_MODULE(Chain);

template <class Recurrence>
struct RandomRecurrentImpl : torch::nn::Module {
  RandomRecurrentImpl(std::int64_t width, double dropout)
      : embedding(register_module("embedding", torch::nn::Embedding(11, width))),
        layer(register_module("layer", Recurrence(width, width + 1))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        output(register_module("output", torch::nn::Linear(width + 1, 11))) {}
  torch::nn::Embedding embedding;
  Recurrence layer;
  torch::nn::Dropout drop;
  torch::nn::Linear output;
};

template <class Recurrence>
RandomTask random_recurrence(const Choices& one) {
  const auto width = one.number("width");
  const auto net =
      std::make_shared<RandomRecurrentImpl<Recurrence>>(width, one.has("dropout") ? 0.4 : 0.0);
  const bool carries = one.has("carry");
  return {net, [net, width, carries](const RandomPiece& piece) {
            constexpr bool kIsLstm = std::is_same_v<Recurrence, torch::nn::LSTM>;
            const auto codes = draw_codes(piece.seed, 11, {piece.rows + 1, 3});
            const auto x = net->embedding->forward(codes);
            const auto zeros = torch::zeros({1, 3, width + 1}, x.options().requires_grad(false));
            torch::Tensor h = zeros;
            torch::Tensor c = zeros;
            const bool has_state = carries && piece.state;
            if (has_state) h = piece.state("h", zeros);
            if (has_state && kIsLstm) c = piece.state("c", zeros);
            torch::Tensor all;
            if constexpr (kIsLstm) {
              const auto [out, last] =
                  net->layer->forward(x, std::make_tuple(h.clone(), c.clone()));
              all = out;
              if (has_state) h.copy_(std::get<0>(last).detach());
              if (has_state) c.copy_(std::get<1>(last).detach());
            } else {
              const auto [out, last] = net->layer->forward(x, h.clone());
              all = out;
              if (has_state) h.copy_(last.detach());
            }
            const auto scores = net->output->forward(net->drop->forward(all)).flatten(0, 1);
            return torch::nn::functional::cross_entropy(scores, codes.flatten());
          }};
}

/// Layers one after the other, for tensors of rows.
inline RandomTask random_chain(const Choices& one, torch::ScalarType dtype) {
  const auto& model = one["model"];
  const auto width = one.number("width");
  Chain net(one.has("constants"));
  std::vector<std::int64_t> sizes = {6};
  if (model == "conv") {
    sizes = {2, 6, 5};
    net->add("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, width, 3)));
    net->add("norm", torch::nn::BatchNorm2d(width));
    net->add("flatten", torch::nn::Flatten());
    net->add("output", torch::nn::Linear(width * 12, 5));
  } else if (model == "tied") {
    sizes = {width};
    const auto shared = torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false));
    net->add("shared", shared);
    net->add("tanh", torch::nn::Tanh());
    net->add("shared", shared);
    net->add("output", torch::nn::Linear(width, 4));
  } else {  // "wide" has parameters that come into being in shared memory
    const auto hidden = model == "wide" ? 130 + width : width;
    net->add("input", torch::nn::Linear(6, hidden));
    net->add("tanh", torch::nn::Tanh());
    if (model == "wide") net->add("middle", torch::nn::Linear(hidden, 141));
    if (one.has("dropout")) net->add("drop", torch::nn::Dropout(0.4));
    net->add("output", torch::nn::Linear(model == "wide" ? 141 : hidden, 3));
  }
  sizes.insert(sizes.begin(), 0);
  const auto input = [sizes, dtype](const RandomPiece& piece) {
    auto shape = sizes;
    shape[0] = piece.rows;
    return draw(piece.seed, shape).to(dtype);
  };
  return layered_task(net.ptr(), input, net->layers,
                      [net](const torch::Tensor& y) { return net->loss_of(y); });
}

inline RandomTask random_embedding(const Choices& one) {
  const auto width = one.number("width");
  auto net = torch::nn::Sequential(torch::nn::Embedding(300, width), torch::nn::Flatten(),
                                   torch::nn::Linear(4 * width, 3));
  std::vector<PipelineLayer> layers;
  for (const auto& layer : *net) layers.push_back(layer_of(layer));
  return layered_task(
      net.ptr(),
      [](const RandomPiece& piece) {
        return draw_codes(piece.seed, 300, {piece.rows, 4});
      },
      layers, [](const torch::Tensor& y) { return y.square().mean(); });
}

/// Row-sparse tables: looked up twice, in sums, and by hand; some pieces look up nothing.
struct RandomTablesImpl : torch::nn::Module {
  explicit RandomTablesImpl(std::int64_t width)
      : words(register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(200, width).sparse(true)))),
        sums(register_module(
            "sums", torch::nn::EmbeddingBag(
                        torch::nn::EmbeddingBagOptions(200, 1).sparse(true).mode(torch::kSum)))),
        own(register_parameter("own_weight", torch::randn({90, width}))),
        output(register_module("output", torch::nn::Linear(4 * width, 3))) {}
  torch::nn::Embedding words;
  torch::nn::EmbeddingBag sums;
  torch::Tensor own;
  torch::nn::Linear output;
};
TORCH_MODULE(RandomTables);

inline RandomTask random_tables(const Choices& one) {
  RandomTables net(one.number("width"));
  return {net.ptr(), [net](const RandomPiece& piece) mutable {
            const auto codes = draw_codes(piece.seed, 200, {piece.rows, 4});
            if ((piece.index + piece.step) % 3 == 0) return net->output->weight.square().sum();
            const auto x =
                net->words->forward(codes) + net->words->forward(codes.flip(0)) +
                torch::embedding(net->own, codes.remainder(90), -1, false, /*sparse=*/true);
            const auto scores = net->output->forward(x.flatten(1));
            return (scores + net->sums->forward(codes)).square().mean();
          }};
}

/// Branches that only some pieces use, and one that none uses.
inline RandomTask random_branches(const Choices& one, torch::ScalarType dtype) {
  const auto width = one.number("width");
  auto net = torch::nn::ModuleList();
  for (int k = 0; k < 4; ++k) net->push_back(torch::nn::Linear(6, width + k));
  return {net.ptr(), [net, dtype](const RandomPiece& piece) mutable {
            const auto x = draw(piece.seed, {piece.rows, 6}).to(dtype);
            const auto which = static_cast<std::size_t>(
                number_of(piece.seed, static_cast<std::uint64_t>(piece.index), 0, "branch") % 3);
            return net[which]->as<torch::nn::Linear>()->forward(x).square().mean();
          }};
}

inline RandomTask task_of(const Choices& one) {
  const auto dtype = dtype_of(one);
  const auto& model = one["model"];
  const auto task = model == "lstm"        ? random_recurrence<torch::nn::LSTM>(one)
                    : model == "gru"       ? random_recurrence<torch::nn::GRU>(one)
                    : model == "embedding" ? random_embedding(one)
                    : model == "tables"    ? random_tables(one)
                    : model == "branches"  ? random_branches(one, dtype)
                                           : random_chain(one, dtype);
  task.module->to(dtype);
  return task;
}

}  // namespace tutti::test::exact
