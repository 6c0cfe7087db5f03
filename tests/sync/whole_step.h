#pragma once

// The one sync of a step as DataParallel does it, for tests whose gradients are of one kind.

#include "sync/coded/coded_gradients.h"
#include "sync/step/owned_ranges.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti::test {

/// Of gradients that are sent as they are.
inline const StepExchange::Outcome& finish(StepExchange& exchange, const ModelMemory& model = {}) {
  exchange.arrive(model);
  return exchange.complete([&] {
    exchange.fold_slices();
    exchange.take_buffers(model);
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
