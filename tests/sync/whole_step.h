#pragma once

// The one sync of a step as DataParallel does it, for tests whose gradients are of one kind.

#include "sync/coded/coded_gradients.h"
#include "sync/gradient_oracle.h"
#include "sync/step/owned_ranges.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti::test {

/// Options under which a few thousand elements are several buckets.
inline ExchangeOptions small_buckets() {
  ExchangeOptions options;
  options.name = "model";
  options.fusion = 1024;
  options.first_fusion = 128;
  return options;
}

/// Writes what a leaf has, last parameter first, as a backward does.
inline void write_leaf(StepExchange& exchange, const Leaf& leaf) {
  for (std::size_t p = leaf.size(); p > 0; --p) {
    if (leaf[p - 1]) exchange.leaves().write(p - 1, leaf[p - 1]->data(), true);
  }
}

/// Of gradients that are sent as they are.
inline const StepExchange::Outcome& finish(StepExchange& exchange, const ModelMemory& model = {}) {
  exchange.arrive(model);
  return exchange.complete([&] {
    exchange.fold_slices();
    exchange.model().take_buffers(model);
  });
}

/// Of messages.
inline StepExchange::Outcome finish(StepExchange& exchange, CodedGradients& coded) {
  exchange.arrive({});
  coded.begin(1);
  const auto refusal = coded.prepare();
  if (!refusal.text.empty()) throw Diverged(refusal.text);
  auto outcome = exchange.complete([&] {
    const OwnedRanges ranges(exchange, coded);
    fold_for_all(coded, exchange.nodes(), ranges.of(exchange.nodes().team().rank));
    coded.note();
  });
  coded.commit(outcome.report);
  return outcome;
}

/// What a source has of a parameter of so many elements, in float32.
inline std::vector<float> read_all(GradientSource& source, std::uint32_t parameter,
                                   std::size_t count) {
  std::vector<float> all;
  source.read({parameter, 0, static_cast<std::int64_t>(count)},
              [&](const ElementRange& piece, const std::byte* values) {
                const auto* const at = reinterpret_cast<const float*>(values);
                all.insert(all.end(), at, at + (piece.end - piece.begin));
              });
  return all;
}

}  // namespace tutti::test
