#pragma once

// One layer of an LSTM or a GRU on its way through time, forward or back, chunk by chunk.
//
// All its memory is allocated in front of the first chunk, besides what chunks keep without
// recomputation. Nothing is recorded: the caller has dispatch below autograd.
//
// Threads: one at a time. Failure: InvalidArgument where a chunk that runs again ends in another
// state.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/recurrent/recurrent_cell.h"

namespace tutti {

/// Which rows of a layer's input each time step has: those of all sequences that last until it.
class TimeSteps {
 public:
  /// `sequences` that all last `steps`, in chunks of `per_chunk`.
  TimeSteps(std::int64_t steps, std::int64_t sequences, std::int64_t per_chunk);
  /// As many sequences in each step as `counts` has: never more in a later one.
  TimeSteps(const std::vector<std::int64_t>& counts, std::int64_t per_chunk);

  std::int64_t count() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::int64_t rows() const { return first_.back(); }
  std::int64_t sequences() const { return first_.at(1); }
  std::int64_t first_row(std::int64_t step) const { return first_[static_cast<std::size_t>(step)]; }
  std::int64_t rows_of(std::int64_t step) const { return first_row(step + 1) - first_row(step); }
  std::int64_t chunks() const;
  struct Range {
    std::int64_t begin, end;
  };
  Range chunk(std::int64_t index) const;                              ///< its steps
  std::int64_t most_rows() const { return first_row(chunk(0).end); }  ///< of a chunk

 private:
  std::vector<std::int64_t> first_;
  std::int64_t per_chunk_;
};

/// Rows of a tensor by time steps, wherever they lie: [rows, width], or [T, B, width].
class StepRows {
 public:
  StepRows(const torch::Tensor& tensor, const TimeSteps& steps);
  torch::Tensor of_step(std::int64_t step) const;
  torch::Tensor of_chunk(TimeSteps::Range chunk) const;
  /// Whether products read it as it lies.
  bool is_matrix() const { return tensor_.dim() == 2 && tensor_.stride(1) == 1; }

 private:
  torch::Tensor tensor_;
  const TimeSteps* steps_;
};

struct RecurrentLayer {
  std::string name;  ///< in errors
  CellKind kind;
  bool recompute;
  TimeSteps steps;
  std::vector<CellWeights> directions;  ///< the second goes from the last step to the first
  torch::Tensor kept =
      {};            ///< bool, as the input: which elements dropout leaves; undefined for all
  double scale = 1;  ///< of those
};

struct RecurrentResult {
  torch::Tensor output;  ///< [rows, directions·P], or [T, B, directions·P] as the input
  torch::Tensor hidden;  ///< [directions, B, P]
  torch::Tensor cell;    ///< [directions, B, H]; LSTM
};

/// What a direction keeps for its way back. Chunks are counted in the order that they ran in.
struct KeptChunks {
  CellState states;         ///< [chunks + 1, B, …]: before each chunk and after the last
  std::vector<Tape> tapes;  ///< without recomputation
};

struct LayerGradients {
  torch::Tensor input;               ///< is set; undefined where it is not wanted
  torch::Tensor hidden, cell;        ///< those of the last states turn into those of the first
  std::vector<CellWeights> weights;  ///< are added to; undefined where they are not wanted
};

class LayerPass {
 public:
  /// Both are referred to.
  LayerPass(const RecurrentLayer& layer, const torch::Tensor& input);
  /// From these states; what backward() needs is added to `kept`, if there is one.
  RecurrentResult forward(const torch::Tensor& hidden, const torch::Tensor& cell,
                          std::vector<KeptChunks>* kept);
  /// `output`: the gradient of forward()'s; undefined for zeros.
  void backward(const torch::Tensor& output, const std::vector<KeptChunks>& kept,
                LayerGradients& gradients);

 private:
  std::int64_t directions() const { return static_cast<std::int64_t>(layer_.directions.size()); }
  void take(std::int64_t direction);
  TimeSteps::Range chunk_of(std::int64_t index) const;
  std::int64_t rows_in(TimeSteps::Range chunk) const;
  template <class Body>
  void for_steps(TimeSteps::Range chunk, bool from_the_last, const Body& body) const;
  torch::Tensor input_of(TimeSteps::Range chunk) const;
  torch::Tensor noise_of(TimeSteps::Range chunk) const;
  void run(TimeSteps::Range chunk, const torch::Tensor& input, const Tape& tape,
           const CellState& state, const StepRows* outputs) const;
  void run_again(std::int64_t index, const torch::Tensor& input, const Tape& tape,
                 const CellState& states);

  const RecurrentLayer& layer_;
  const TimeSteps& steps_;
  const torch::Tensor& input_;
  StepRows inputs_;
  bool copies_input_;
  bool reversed_ = false;
  std::unique_ptr<RecurrentCell> cell_;  ///< of the direction that is current
  Workspace work_;
  torch::Tensor scale_;  ///< of what dropout leaves
  CellState again_;      ///< of a chunk that runs again
};

}  // namespace tutti
