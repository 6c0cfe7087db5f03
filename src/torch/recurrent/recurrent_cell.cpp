#include "torch/recurrent/recurrent_cell.h"

#include <array>
#include <utility>

namespace tutti {

using torch::Tensor;

namespace {

Tensor part(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
}

}  // namespace

CellState CellState::first(std::int64_t sequences) const {
  return {part(hidden, 0, sequences), part(cell, 0, sequences)};
}

Tape Tape::rows(std::int64_t first, std::int64_t count) const {
  return {part(gates, first, count), part(hidden, first, count), part(cell, first, count),
          part(tanh, first, count)};
}

Workspace Workspace::rows(std::int64_t first, std::int64_t count) const {
  return {tape.rows(first, count), part(factor, first, count), part(scratch, first, count),
          part(given, first, count), part(input, first, count)};
}

RecurrentCell::RecurrentCell(const CellWeights& weights, std::int64_t hidden_columns,
                             std::int64_t input_column)
    : weights_(weights),
      hidden_columns_(hidden_columns),
      input_column_(input_column),
      hidden_size_((hidden_columns + input_column) / 4),
      hidden_(input_column == 0 ? weights.hidden : weights.hidden.roll(input_column, 0)),
      hidden_transposed_(hidden_.t().contiguous()) {
  if (!weights.input_bias.defined()) return;
  sums_ = torch::empty({4 * hidden_size_}, weights.input.options());
  bias_ = torch::zeros({4 * hidden_size_}, weights.input.options());
  bias_.narrow(0, 0, hidden_columns)
      .add_(input_column == 0 ? weights.hidden_bias : weights.hidden_bias.roll(input_column, 0));
  bias_.narrow(0, input_column, hidden_columns).add_(weights.input_bias);
}

Tensor RecurrentCell::empty(std::int64_t rows, std::int64_t columns) const {
  return torch::empty({rows, columns}, weights_.input.options());
}

void RecurrentCell::begin(const Tensor& input, const Tape& chunk) const {
  auto gates = chunk.gates.narrow(1, input_column_, hidden_columns_);
  if (!bias_.defined()) {
    at::mm_out(gates, input, weights_.input.t());
  } else {
    at::addmm_out(gates, bias_.narrow(0, input_column_, hidden_columns_), input,
                  weights_.input.t());
  }
  if (input_column_ == 0) return;
  auto others = chunk.gates.narrow(1, 0, input_column_);
  if (bias_.defined()) {
    others.copy_(bias_.narrow(0, 0, input_column_));
  } else {
    others.zero_();
  }
}

void RecurrentCell::input_gradient(const Workspace& chunk, Tensor to, bool add) const {
  const auto gates = chunk.tape.gates.narrow(1, input_column_, hidden_columns_);
  if (add) {
    to.addmm_(gates, weights_.input);
  } else {
    at::mm_out(to, gates, weights_.input);
  }
}

void RecurrentCell::add_gradients(const Workspace& chunk, const Tape& tape, const Tensor& input,
                                  const CellWeights& gradients) const {
  const auto& gates = chunk.tape.gates;
  const auto add = [](Tensor to, const Tensor& one, const Tensor& other) {
    if (to.defined()) to.addmm_(one.t(), other);
  };
  add(gradients.input, gates.narrow(1, input_column_, hidden_columns_), input);
  add(gradients.hidden, gates.narrow(1, 0, hidden_columns_), tape.hidden);
  add(gradients.projection, chunk.given, chunk.scratch);
  if (!gradients.input_bias.defined() && !gradients.hidden_bias.defined()) return;
  auto sums = sums_;
  at::sum_out(sums, gates, 0);
  const auto add_sums = [&](const Tensor& to, std::int64_t column) {
    if (to.defined()) to.add_(sums.narrow(0, column, hidden_columns_));
  };
  add_sums(gradients.input_bias, input_column_);
  add_sums(gradients.hidden_bias, 0);
}

void RecurrentCell::finish(CellWeights& gradients) const {
  if (input_column_ == 0) return;
  for (auto* gradient : {&gradients.hidden, &gradients.hidden_bias}) {
    if (gradient->defined()) *gradient = gradient->roll(-input_column_, 0);
  }
}

namespace {

std::array<Tensor, 4> columns_of(const Tensor& gates) {
  const auto size = gates.size(1) / 4;
  return {gates.narrow(1, 0, size), gates.narrow(1, size, size), gates.narrow(1, 2 * size, size),
          gates.narrow(1, 3 * size, size)};
}

/// Columns: input gate, forget gate, new values, output gate, as the rows of torch's weights.
class LstmCell final : public RecurrentCell {
 public:
  LstmCell(const CellWeights& weights, std::int64_t sequences)
      : RecurrentCell(weights, weights.hidden.size(0), 0) {
    if (weights.projection.defined()) {
      wide_ = empty(sequences, hidden_size_);
      projection_transposed_ = weights.projection.t().contiguous();
    }
  }

  Tape new_tape(std::int64_t rows) const override {
    return {empty(rows, 4 * hidden_size_), empty(rows, width()), empty(rows, hidden_size_),
            empty(rows, hidden_size_)};
  }
  Workspace new_workspace(std::int64_t rows) const override {
    Workspace work{.tape = new_tape(rows), .factor = empty(rows, hidden_size_)};
    if (wide_.defined()) {
      work.scratch = empty(rows, hidden_size_);
      work.given = empty(rows, width());
    }
    return work;
  }

  // c' = f·c + i·g, h' = o·tanh(c')
  void step(const Tape& rows, const CellState& state) const override {
    auto hidden = state.hidden;
    auto tanh = rows.tanh;
    rows.hidden.copy_(hidden);
    rows.cell.copy_(state.cell);
    rows.gates.addmm_(rows.hidden, hidden_transposed_);
    const auto [i, f, g, o] = columns_of(rows.gates);
    rows.gates.narrow(1, 0, 2 * hidden_size_).sigmoid_();
    g.tanh_();
    o.sigmoid_();
    state.cell.mul_(f).addcmul_(i, g);
    at::tanh_out(tanh, state.cell);
    if (!wide_.defined()) {
      at::mul_out(hidden, o, tanh);
      return;
    }
    auto wide = wide_.narrow(0, 0, rows.gates.size(0));
    at::mul_out(wide, o, tanh);
    at::mm_out(hidden, wide, projection_transposed_);
  }

  // With dc of the cell after the step and dr of o·tanh(c'): dc += dr·o·(1−tanh²); gradients of
  // i, f, g before they are squashed are dc·g·i(1−i), dc·c·f(1−f), dc·i·(1−g²), that of o is
  // dr·tanh·o(1−o), and that of the cell before is dc·f.
  void begin_back(const Tape& tape, const Workspace& work) const override {
    const auto [i, f, g, o] = columns_of(tape.gates);
    auto [to_i, to_f, to_g, to_o] = columns_of(work.tape.gates);
    auto factor = work.factor;
    auto wide = work.scratch;
    auto free = work.tape.tanh;
    if (wide.defined()) at::mul_out(wide, o, tape.tanh);
    at::tanh_backward_out(factor, o, tape.tanh);
    at::sigmoid_backward_out(to_o, tape.tanh, o);
    at::sigmoid_backward_out(free, g, i);
    at::tanh_backward_out(to_g, i, g);
    to_i.copy_(free);
    at::sigmoid_backward_out(free, tape.cell, f);
    work.tape.cell.copy_(f);
    to_f.copy_(free);
  }
  void step_back(const Workspace& rows, const CellState& gradient) const override {
    auto hidden = gradient.hidden;
    const auto& gates = rows.tape.gates;
    auto of_result = hidden;
    if (wide_.defined()) {
      rows.given.copy_(hidden);
      of_result = wide_.narrow(0, 0, gates.size(0));
      at::mm_out(of_result, hidden, weights_.projection);
    }
    gradient.cell.addcmul_(of_result, rows.factor);
    const auto four = gates.view({gates.size(0), 4, hidden_size_});
    four.narrow(1, 0, 3).mul_(gradient.cell.unsqueeze(1));
    four.select(1, 3).mul_(of_result);
    gradient.cell.mul_(rows.tape.cell);
    at::mm_out(hidden, gates, hidden_);
  }

 private:
  Tensor wide_;  ///< [sequences, H]: with a projection, a step's result before it
  Tensor projection_transposed_;
};

/// Columns: the hidden state's part q of the new values, reset gate, update gate, new values. The
/// hidden state has a part in the first three, the input in the last three.
class GruCell final : public RecurrentCell {
 public:
  explicit GruCell(const CellWeights& weights)
      : RecurrentCell(weights, weights.hidden.size(0), weights.hidden.size(0) / 3) {}

  Tape new_tape(std::int64_t rows) const override {
    return {.gates = empty(rows, 4 * hidden_size_), .hidden = empty(rows, width())};
  }
  Workspace new_workspace(std::int64_t rows) const override {
    return {.tape = new_tape(rows),
            .factor = empty(rows, hidden_size_),
            .scratch = empty(rows, hidden_size_)};
  }

  // n = tanh(n + r·q), h' = n + z·(h − n)
  void step(const Tape& rows, const CellState& state) const override {
    auto hidden = state.hidden;
    rows.hidden.copy_(hidden);
    rows.gates.narrow(1, 0, hidden_columns_).addmm_(rows.hidden, hidden_transposed_);
    const auto [q, r, z, n] = columns_of(rows.gates);
    rows.gates.narrow(1, hidden_size_, 2 * hidden_size_).sigmoid_();
    n.addcmul_(r, q).tanh_();
    at::lerp_out(hidden, n, rows.hidden, z);
  }

  // Of dh: that of n before tanh is (1−z)(1−n²), of q that times r, of r before it is squashed that
  // times q·r(1−r), of z (h−n)·z(1−z), and of the state before z, besides what q, r and z had of
  // it.
  void begin_back(const Tape& tape, const Workspace& work) const override {
    const auto [q, r, z, n] = columns_of(tape.gates);
    auto [to_q, to_r, to_z, to_n] = columns_of(work.tape.gates);
    auto factor = work.factor;
    auto scratch = work.scratch;
    factor.copy_(z);
    at::sub_out(scratch, tape.hidden, n);
    at::sigmoid_backward_out(to_z, scratch, factor);
    scratch.fill_(1).sub_(factor);
    at::tanh_backward_out(to_n, scratch, n);
    at::mul_out(scratch, to_n, q);
    at::mul_out(to_q, to_n, r);
    at::sigmoid_backward_out(to_r, scratch, r);
  }
  void step_back(const Workspace& rows, const CellState& gradient) const override {
    const auto& gates = rows.tape.gates;
    gates.view({gates.size(0), 4, hidden_size_}).mul_(gradient.hidden.unsqueeze(1));
    gradient.hidden.mul_(rows.factor).addmm_(gates.narrow(1, 0, hidden_columns_), hidden_);
  }
};

}  // namespace

std::unique_ptr<RecurrentCell> RecurrentCell::make(CellKind kind, const CellWeights& weights,
                                                   std::int64_t sequences) {
  if (kind == CellKind::lstm) return std::make_unique<LstmCell>(weights, sequences);
  return std::make_unique<GruCell>(weights);
}

}  // namespace tutti
