#include "torch/recurrent/recurrent_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "torch/model/same_bytes.h"
#include "tutti/error.h"

namespace tutti {

using torch::Tensor;

TimeSteps::TimeSteps(std::int64_t steps, std::int64_t sequences, std::int64_t per_chunk)
    : TimeSteps(std::vector<std::int64_t>(static_cast<std::size_t>(steps), sequences), per_chunk) {}

TimeSteps::TimeSteps(const std::vector<std::int64_t>& counts, std::int64_t per_chunk)
    : first_{0}, per_chunk_(per_chunk) {
  for (const auto rows : counts) first_.push_back(first_.back() + rows);
}

std::int64_t TimeSteps::chunks() const { return (count() + per_chunk_ - 1) / per_chunk_; }

TimeSteps::Range TimeSteps::chunk(std::int64_t index) const {
  return {index * per_chunk_, std::min(count(), (index + 1) * per_chunk_)};
}

StepRows::StepRows(const Tensor& tensor, const TimeSteps& steps)
    : tensor_(tensor.dim() == 3 && tensor.is_contiguous()
                  ? tensor.view({steps.rows(), tensor.size(2)})
                  : tensor),
      steps_(&steps) {}

Tensor StepRows::of_step(std::int64_t step) const {
  return tensor_.dim() == 3 ? tensor_.select(0, step)
                            : tensor_.narrow(0, steps_->first_row(step), steps_->rows_of(step));
}

Tensor StepRows::of_chunk(TimeSteps::Range chunk) const {
  if (tensor_.dim() == 3) return tensor_.narrow(0, chunk.begin, chunk.end - chunk.begin);
  const auto first = steps_->first_row(chunk.begin);
  return tensor_.narrow(0, first, steps_->first_row(chunk.end) - first);
}

namespace {

CellState entry(const CellState& states, std::int64_t index) {
  return {states.hidden.select(0, index),
          states.cell.defined() ? states.cell.select(0, index) : Tensor()};
}

void copy(const CellState& from, const CellState& to) {
  to.hidden.copy_(from.hidden);
  if (to.cell.defined()) to.cell.copy_(from.cell);
}

Tensor copy_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.clone(at::MemoryFormat::Contiguous) : tensor;
}

Tensor several(std::int64_t count, const Tensor& like) {
  return like.defined() ? torch::empty({count, like.size(0), like.size(1)}, like.options()) : like;
}

}  // namespace

LayerPass::LayerPass(const RecurrentLayer& layer, const Tensor& input)
    : layer_(layer),
      steps_(layer.steps),
      input_(input),
      inputs_(input, steps_),
      copies_input_(layer.kept.defined() || !inputs_.is_matrix()) {
  if (!copies_input_) return;
  work_.input = torch::empty({steps_.most_rows(), input.size(-1)}, input.options());
  scale_ = torch::full({}, layer.scale, input.options());
}

void LayerPass::take(std::int64_t direction) {
  reversed_ = direction == 1;
  cell_ = RecurrentCell::make(layer_.kind, layer_.directions[static_cast<std::size_t>(direction)],
                              steps_.sequences());
}

TimeSteps::Range LayerPass::chunk_of(std::int64_t index) const {
  return steps_.chunk(reversed_ ? steps_.chunks() - 1 - index : index);
}

std::int64_t LayerPass::rows_in(TimeSteps::Range chunk) const {
  return steps_.first_row(chunk.end) - steps_.first_row(chunk.begin);
}

/// `body(step, its first row of the chunk, rows)`
template <class Body>
void LayerPass::for_steps(TimeSteps::Range chunk, bool from_the_last, const Body& body) const {
  const auto origin = steps_.first_row(chunk.begin);
  for (auto i = chunk.begin; i < chunk.end; ++i) {
    const auto step = from_the_last ? chunk.begin + chunk.end - 1 - i : i;
    body(step, steps_.first_row(step) - origin, steps_.rows_of(step));
  }
}

/// As a matrix, in the workspace where it has to be copied.
Tensor LayerPass::input_of(TimeSteps::Range chunk) const {
  const auto rows = inputs_.of_chunk(chunk);
  if (!copies_input_) return rows;
  if (layer_.kept.defined()) return noise_of(chunk).mul_(rows);
  auto copied = work_.input.narrow(0, 0, rows_in(chunk));
  copied.view(rows.sizes()).copy_(rows);
  return copied;
}

/// What dropout multiplies with, where input_of() lies.
Tensor LayerPass::noise_of(TimeSteps::Range chunk) const {
  return work_.input.narrow(0, 0, rows_in(chunk))
      .copy_(StepRows(layer_.kept, steps_).of_chunk(chunk))
      .mul_(scale_);
}

void LayerPass::run(TimeSteps::Range chunk, const Tensor& input, const Tape& tape,
                    const CellState& state, const StepRows* outputs) const {
  cell_->begin(input, tape);
  for_steps(chunk, reversed_, [&](std::int64_t step, std::int64_t first, std::int64_t rows) {
    const auto current = state.first(rows);
    cell_->step(tape.rows(first, rows), current);
    if (outputs != nullptr) outputs->of_step(step).copy_(current.hidden);
  });
}

void LayerPass::run_again(std::int64_t index, const Tensor& input, const Tape& tape,
                          const CellState& states) {
  const auto start = entry(states, index);
  if (!again_.hidden.defined()) again_ = {copy_of(start.hidden), copy_of(start.cell)};
  copy(start, again_);
  run(chunk_of(index), input, tape, again_, nullptr);
  const auto end = entry(states, index + 1);
  const bool has_cell = end.cell.defined();
  if (same_bytes(end.hidden, again_.hidden) && (!has_cell || same_bytes(end.cell, again_.cell)))
    return;
  const auto [first, last] = chunk_of(index);
  throw InvalidArgument(
      fmt::format("run_in_chunks \"{}\": run again, steps [{}, {}) end in another state: a weight "
                  "or the input was written past autograd since",
                  layer_.name, first, last));
}

RecurrentResult LayerPass::forward(const Tensor& hidden, const Tensor& cell,
                                   std::vector<KeptChunks>* kept) {
  const auto width = hidden.size(2);
  auto shape = input_.sizes().vec();
  shape.back() = directions() * width;
  RecurrentResult result{torch::empty(shape, input_.options()), copy_of(hidden), copy_of(cell)};
  const bool keeps_tapes = kept != nullptr && !layer_.recompute;
  for (std::int64_t d = 0; d < directions(); ++d) {
    take(d);
    if (!keeps_tapes && d == 0) work_.tape = cell_->new_tape(steps_.most_rows());
    const StepRows outputs(result.output.narrow(-1, d * width, width), steps_);
    const auto state = entry({result.hidden, result.cell}, d);
    KeptChunks own;
    const bool keeps_states = kept != nullptr && layer_.recompute;
    if (keeps_states) {
      own.states = {several(steps_.chunks() + 1, state.hidden),
                    several(steps_.chunks() + 1, state.cell)};
      copy(state, entry(own.states, 0));
    }
    for (std::int64_t k = 0; k < steps_.chunks(); ++k) {
      const auto chunk = chunk_of(k);
      if (keeps_tapes) own.tapes.push_back(cell_->new_tape(rows_in(chunk)));
      run(chunk, input_of(chunk),
          keeps_tapes ? own.tapes.back() : work_.tape.rows(0, rows_in(chunk)), state, &outputs);
      if (keeps_states) copy(state, entry(own.states, k + 1));
    }
    if (kept != nullptr) kept->push_back(std::move(own));
  }
  return result;
}

void LayerPass::backward(const Tensor& output, const std::vector<KeptChunks>& kept,
                         LayerGradients& gradients) {
  for (std::int64_t d = 0; d < directions(); ++d) {
    take(d);
    if (d == 0) {
      auto workspace = cell_->new_workspace(steps_.most_rows());
      workspace.input = work_.input;
      work_ = std::move(workspace);
    }
    const auto state = entry({gradients.hidden, gradients.cell}, d);
    const auto width = state.hidden.size(1);
    std::optional<StepRows> given;
    if (output.defined()) given.emplace(output.narrow(-1, d * width, width), steps_);
    auto& weights = gradients.weights[static_cast<std::size_t>(d)];
    const auto& own = kept[static_cast<std::size_t>(d)];
    for (auto k = steps_.chunks(); k-- > 0;) {
      const auto chunk = chunk_of(k);
      const auto work = work_.rows(0, rows_in(chunk));
      const auto input = input_of(chunk);
      if (layer_.recompute) run_again(k, input, work.tape, own.states);
      const auto& tape = layer_.recompute ? work.tape : own.tapes[static_cast<std::size_t>(k)];
      cell_->begin_back(tape, work);
      for_steps(chunk, !reversed_, [&](std::int64_t step, std::int64_t first, std::int64_t rows) {
        const auto gradient = state.first(rows);
        if (given) gradient.hidden.add_(given->of_step(step));
        cell_->step_back(work.rows(first, rows), gradient);
      });
      cell_->add_gradients(work, tape, input, weights);
      if (!gradients.input.defined()) continue;
      const auto of_input = StepRows(gradients.input, steps_).of_chunk(chunk);
      cell_->input_gradient(work, of_input, d > 0);
      if (layer_.kept.defined() && d == directions() - 1) of_input.mul_(noise_of(chunk));
    }
    cell_->finish(weights);
  }
}

}  // namespace tutti
