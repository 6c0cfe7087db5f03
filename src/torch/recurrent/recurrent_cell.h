#pragma once

// The arithmetic of one direction of one layer of an LSTM or a GRU: a step's gates in place, in
// memory that the caller has for a whole chunk of time, and the way back through them.
//
// A row is one sequence in one step; rows of a step lie one after another, and so do steps. H is
// the hidden size, P the size of what a step gives (H without a projection), I the input's.
// In front of a chunk's way back stand derivatives that depend on no later step, for all its rows
// at once, so that a step back is one product and a few sweeps.
//
// Threads: one at a time. Nothing is recorded for autograd by the caller's leave: it has dispatch
// below autograd. Failure: that of torch.

#include <torch/torch.h>

#include <cstdint>
#include <memory>

namespace tutti {

enum class CellKind { lstm, gru };

/// Of one direction, or the gradients of these; undefined where there is none.
struct CellWeights {
  torch::Tensor input = {};        ///< [gates·H, I]
  torch::Tensor hidden = {};       ///< [gates·H, P]
  torch::Tensor input_bias = {};   ///< [gates·H]
  torch::Tensor hidden_bias = {};  ///< [gates·H]
  torch::Tensor projection = {};   ///< [P, H]
};

/// [sequences, P] and, of an LSTM, [sequences, H]; or their gradients.
struct CellState {
  torch::Tensor hidden = {};
  torch::Tensor cell = {};
  CellState first(std::int64_t sequences) const;
};

/// What a chunk's way back needs besides its input.
struct Tape {
  torch::Tensor gates = {};  ///< [rows, 4·H]; of a GRU with the hidden state's part of the new gate
  torch::Tensor hidden = {};  ///< [rows, P], before the step
  torch::Tensor cell = {};    ///< [rows, H], before the step; LSTM
  torch::Tensor tanh = {};    ///< [rows, H], of the cell after it; LSTM
  Tape rows(std::int64_t first, std::int64_t count) const;
};

/// What all chunks of a layer use in turn.
struct Workspace {
  Tape tape = {};              ///< gates turn into their gradients
  torch::Tensor factor = {};   ///< [rows, H]
  torch::Tensor scratch = {};  ///< [rows, H]
  torch::Tensor given = {};    ///< [rows, P], gradients of what steps gave; with a projection
  torch::Tensor input =
      {};  ///< [rows, I]; where the chunk's input does not lie in memory as it should
  Workspace rows(std::int64_t first, std::int64_t count) const;
};

class RecurrentCell {
 public:
  /// For at most `sequences` in a step. Copies of weights that products are faster with are made
  /// here.
  static std::unique_ptr<RecurrentCell> make(CellKind kind, const CellWeights& weights,
                                             std::int64_t sequences);
  virtual ~RecurrentCell() = default;

  virtual Tape new_tape(std::int64_t rows) const = 0;
  virtual Workspace new_workspace(std::int64_t rows) const = 0;

  /// The input's part of all gates of a chunk, in one product.
  void begin(const torch::Tensor& input, const Tape& chunk) const;
  /// One step: `state` is that before it, and then that after it.
  virtual void step(const Tape& rows, const CellState& state) const = 0;

  /// What gradients of a chunk's gates are multiples of; `tape` may be that of `work`.
  virtual void begin_back(const Tape& tape, const Workspace& work) const = 0;
  /// One step back: gradients of the state after it turn into those of the state before it, and
  /// those of the gates are in `rows`.
  virtual void step_back(const Workspace& rows, const CellState& gradient) const = 0;
  /// [rows, I], of a chunk that was gone back through; set, or added to what is there.
  void input_gradient(const Workspace& chunk, torch::Tensor to, bool add) const;
  /// Adds to those of `gradients` that are defined, which is in an order of its own until finish().
  void add_gradients(const Workspace& chunk, const Tape& tape, const torch::Tensor& input,
                     const CellWeights& gradients) const;
  void finish(CellWeights& gradients) const;

 protected:
  /// Columns of gates that the hidden state has a part in are the first `hidden_columns`, those
  /// that the input has a part in all from column `input_column` on.
  RecurrentCell(const CellWeights& weights, std::int64_t hidden_columns, std::int64_t input_column);
  torch::Tensor empty(std::int64_t rows, std::int64_t columns) const;
  std::int64_t width() const { return weights_.hidden.size(1); }

  CellWeights weights_;
  std::int64_t hidden_columns_;
  std::int64_t input_column_;
  std::int64_t hidden_size_;
  torch::Tensor hidden_;             ///< [hidden columns, P], in the order of columns
  torch::Tensor hidden_transposed_;  ///< [P, hidden columns]: its products are a quarter faster
  torch::Tensor bias_;               ///< [4·H], of all columns; undefined without biases
  torch::Tensor sums_;               ///< [4·H]
};

}  // namespace tutti
