#pragma once

// Memory for time: a segment of a model that keeps nothing for backward but its inputs, and runs
// again when backward comes to it.
//
//   auto y = tutti::recompute(block, x);                         // a module
//   auto [h, c] = tutti::recompute(                              // or anything that is called
//       [block](const torch::Tensor& x, const torch::Tensor& state) {
//         return std::tuple(block->forward(x, state), state * 2);
//       }, x, state);
//
// Gradients are those of the segment run plainly, byte for byte; only a tensor that is used three
// times or more may have its gradients added in another order, where these uses lie in several
// segments. Gradients come out of the graph that the result is part of: hooks fire once, and a
// DataParallel or a Trainer sees nothing new. Whatever parameters the segment reads are found by
// its run; they need not be named. A leaf that the segment makes, and does not keep, is none.
//
// A tensor that is returned twice is one result. Two results that share memory, or a result and an
// input, are not to be changed in place: backward ends with InvalidArgument.
//
// The second run is the first one: random numbers are drawn from the state that the generators had,
// autocast is as it was, and the results are compared by their bytes. A segment that gives others
// (it reads what has changed since, or draws from a generator that was not named) ends backward
// with InvalidArgument. Nothing is recorded, and nothing runs again, where gradients are not.
//
// What outlives the segment and is written by its operations, a batch norm's statistics or a
// counter of a module that a lambda captures, the second run leaves as it finds it. A tensor of the
// segment that is kept, and is no result, takes part in no backward that comes to an input.
//
// Shapes: any number of tensors in and out, of any type and, in place of an optional one,
// undefined; on the CPU, on one device of libtorch's, or on both. Threads: the segment runs on the
// one that calls, and in backward on the one that runs backward: for a segment that computes on a
// device, libtorch's own for that device, while the program's waits. The host waits for the device
// once for each segment in backward, and not in forward.
//
// Failure: InvalidArgument for a segment that uses a tensor from outside that needs a gradient and
// is neither a leaf nor an input, that changes an input in place, or that runs otherwise the second
// time; for a backward that comes to an input by a tensor that is no result; for such a change of
// results; Unsupported for tensors that have no bytes or are not dense, for a segment on two
// devices, second derivatives and generators whose state cannot be taken; what the segment throws.

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/tensors.h"

namespace tutti {

struct RecomputeOptions {
  std::string name = "segment";  ///< in errors
  /// That the segment draws from, besides the default ones of the CPU, of its inputs' device and of
  /// the current device.
  std::vector<at::Generator> generators = {};
  /// Modules whose buffers the second run leaves as it finds them, also where they are written
  /// through a pointer. Of a module that is the segment itself it is that module, unless others are
  /// named.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
};

/// `segment(inputs)`. The segment is kept, with all that it holds, until the graph is dropped: what
/// it refers to has to live as long. In a shard of a Trainer, backward comes when the shard's
/// closure is over, and its local variables are gone: capture them by value.
TensorList recompute_list(RecomputeOptions options,
                          std::function<TensorList(const TensorList&)> segment,
                          const TensorList& inputs);

/// How a segment's result becomes a list of tensors, and back.
namespace recomputed {

template <class Result>
struct IsTuple : std::false_type {};
template <class... Parts>
struct IsTuple<std::tuple<Parts...>> : std::true_type {};
template <class First, class Second>
struct IsTuple<std::pair<First, Second>> : std::true_type {};

template <class Result>
struct IsOfTensors : std::is_same<Result, torch::Tensor> {};
template <class... Parts>
struct IsOfTensors<std::tuple<Parts...>> : std::conjunction<IsOfTensors<Parts>...> {};
template <class First, class Second>
struct IsOfTensors<std::pair<First, Second>>
    : std::conjunction<IsOfTensors<First>, IsOfTensors<Second>> {};

template <class Result>
void append(Result&& result, TensorList& list) {
  if constexpr (IsTuple<std::decay_t<Result>>::value) {
    std::apply([&](auto&&... parts) { (append(std::move(parts), list), ...); }, std::move(result));
  } else {
    list.push_back(std::move(result));
  }
}

template <class Result, std::size_t... Part>
Result take(TensorList& list, std::size_t& next, std::index_sequence<Part...> /*parts*/);

template <class Result>
Result take(TensorList& list, std::size_t& next) {
  if constexpr (IsTuple<Result>::value) {
    return take<Result>(list, next, std::make_index_sequence<std::tuple_size_v<Result>>());
  } else {
    return std::move(list.at(next++));
  }
}

template <class Result, std::size_t... Part>
Result take(TensorList& list, std::size_t& next, std::index_sequence<Part...> /*parts*/) {
  return Result{take<std::tuple_element_t<Part, Result>>(list, next)...};  // in order: braces
}

template <class Segment, std::size_t... Input>
decltype(auto) call(Segment& segment, const TensorList& inputs,
                    std::index_sequence<Input...> /*inputs*/) {
  if constexpr (requires { segment->forward(inputs[Input]...); }) {
    return segment->forward(inputs[Input]...);
  } else {
    return segment(inputs[Input]...);
  }
}

}  // namespace recomputed

/// What `segment` gives of `inputs`, tensors: a tensor, a tuple or pair of these, within one
/// another as those of an LSTM, or a vector of tensors. `segment` is called, or is a module (its
/// holder, or a shared pointer), whose forward() is. What is no tensor is captured by a lambda.
template <class Segment, class... Inputs>
auto recompute(RecomputeOptions options, Segment segment, const Inputs&... inputs) {
  static_assert((std::is_convertible_v<const Inputs&, const torch::Tensor&> && ...),
                "tutti::recompute: an input is no tensor; let a lambda capture it");
  using Result = std::decay_t<decltype(recomputed::call(segment, std::declval<const TensorList&>(),
                                                        std::index_sequence_for<Inputs...>()))>;
  constexpr bool kIsList = std::is_same_v<Result, TensorList>;
  static_assert(kIsList || recomputed::IsOfTensors<Result>::value,
                "tutti::recompute: the segment returns what is neither a tensor, nor a tuple or a "
                "vector of tensors");
  if constexpr (requires { segment.ptr(); }) {
    if (options.modules.empty()) options.modules = {segment.ptr()};
  } else if constexpr (std::is_convertible_v<Segment, std::shared_ptr<torch::nn::Module>>) {
    if (options.modules.empty()) options.modules = {segment};
  }
  auto results = recompute_list(std::move(options),
                                [segment = std::move(segment)](const TensorList& given) mutable {
                                  auto result = recomputed::call(
                                      segment, given, std::index_sequence_for<Inputs...>());
                                  if constexpr (kIsList) {
                                    return result;
                                  } else {
                                    TensorList list;
                                    recomputed::append(std::move(result), list);
                                    return list;
                                  }
                                },
                                {inputs...});
  if constexpr (kIsList) {
    return results;
  } else {
    std::size_t next = 0;
    return recomputed::take<Result>(results, next);
  }
}

template <class Segment, class... Inputs>
requires(!std::is_same_v<std::decay_t<Segment>, RecomputeOptions>) auto recompute(
    Segment segment, const Inputs&... inputs) {
  return recompute(RecomputeOptions(), std::move(segment), inputs...);
}

}  // namespace tutti
