// Bytes of row-sparse exchanges: see row_gradients.h.

#include <algorithm>
#include <iterator>

#include "sync/rows/row_gradients.h"

namespace tutti {

void RowGradients::own_touched(std::uint32_t parameter, std::int64_t rows) {
  const auto place = std::lower_bound(parameters_.begin(), parameters_.end(), parameter);
  touched_->mine()[static_cast<std::size_t>(place - parameters_.begin())] = rows;
}

/// A list names its rows in 32 bits each, an array of all rows in a bit each, and neither where
/// they are those of a parameter before.
RowGradients::Cost RowGradients::cost_of(std::uint32_t parameter, std::int64_t rows,
                                         bool same_rows) const {
  const auto& entry = exchange_.plan().parameters()[parameter];
  const auto row = static_cast<std::uint64_t>(row_bytes_of(entry));
  const auto all = static_cast<std::uint64_t>(entry.rows());
  const auto listed = static_cast<std::uint64_t>(rows);
  const auto list = listed * (row + (same_rows ? 0 : sizeof(std::uint32_t)));
  const auto array = all * row + (same_rows ? 0 : (all + 7) / 8);
  return {std::min(list, array), array < list};
}

/// For each worker that has the parameter, the union of the rows of its nodes.
std::vector<RowGradients::Sent> RowGradients::sent_of(std::uint32_t parameter) const {
  const auto& held = nodes_.held();
  std::vector<Sent> all;
  for (const auto& source : sources_of(parameter)) {
    const int worker = held[source.node].worker;
    if (all.empty() || all.back().worker != worker) all.push_back({worker, {}});
    auto& rows = all.back().rows;
    std::vector<std::uint32_t> both;
    std::ranges::set_union(rows, source.list.rows, std::back_inserter(both));
    rows = std::move(both);
  }
  return all;
}

void RowGradients::note() {
  traffic_.begin();
  const auto workers = static_cast<std::size_t>(exchange_.group().size());
  std::vector<std::size_t> bytes_of(workers);
  std::vector<std::vector<Sent>> all;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const auto p = parameters_[k];
    const auto& entry = exchange_.plan().parameters()[p];
    auto& bucket = traffic_.bucket(k);
    auto sent = sent_of(p);
    same_rows_[k] = std::ranges::find(all, sent) != all.end();
    for (const auto& message : sent) {
      const auto rows = static_cast<std::int64_t>(message.rows.size());
      const auto [bytes, is_array] = cost_of(p, rows, same_rows_[k]);
      ++bucket.messages;
      bucket.dense_messages += is_array;
      bucket.values += rows * entry.row_elements();
      bucket.touched += entry.spec.count;
      bucket.bytes += bytes;
      bytes_of[static_cast<std::size_t>(message.worker)] += bytes;
    }
    if (!sent.empty()) {
      bucket.bytes_dense = (sent.size() + workers) * exchange_.plan().bytes_of(p);
    }
    all.push_back(std::move(sent));
  }
  max_bytes_ = std::ranges::max(bytes_of);
}

/// The size of the sum is known once all have folded.
void RowGradients::commit(StepReport& report) {
  report.max_sent_bytes += max_bytes_;
  const int size = exchange_.group().size();
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    auto& bucket = traffic_.bucket(k);
    if (bucket.messages == 0) continue;
    std::int64_t rows = 0;
    for (const int r : nodes_.team().members) rows += touched_->of(r)[k];
    bucket.bytes +=
        static_cast<std::uint64_t>(size) * cost_of(parameters_[k], rows, same_rows_[k]).bytes;
  }
  traffic_.end();
}

}  // namespace tutti
