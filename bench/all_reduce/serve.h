#pragma once

// What every contestant of bench/all_reduce does: check the sum once, then time it when asked.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>

#include "common/control.h"

namespace bench {

/// One float32 sum in place over `data`, as the contestant offers it.
struct Operation {
  float* data = nullptr;
  std::function<void()> run;
};

/// `prepare(way, count)` gives the operation on `count` elements. Commands: "WAY COUNT ITERATIONS
/// TOUCH". The answer is the time of each iteration, in nanoseconds, as rank 0 saw it; with TOUCH 1
/// every rank rewrites its data in each iteration.
template <class Prepare>
void serve(const std::string& socket, int rank, int size, Prepare&& prepare) {
  Control control(socket, rank);
  std::istringstream command;
  while (control.next(command)) {
    std::string way;
    std::int64_t count = 0;
    int iterations = 0;
    bool touch = false;
    command >> way >> count >> iterations >> touch;
    const Operation operation = prepare(way, count);
    if (operation.data != nullptr) {
      for (std::int64_t i = 0; i < count; ++i) {
        operation.data[i] = static_cast<float>(rank + 1 + i % 7);
      }
      operation.run();
      for (std::int64_t i = 0; i < count; ++i) {
        const auto expected = static_cast<float>(size * (size + 1) / 2 + size * (i % 7));
        if (operation.data[i] != expected)
          fail(way + ": wrong sum at element " + std::to_string(i));
      }
      std::fill_n(operation.data, count, 0.0F);
    }
    const auto once = [&] {
      if (touch && operation.data != nullptr) std::fill_n(operation.data, count, 0.0F);
      operation.run();
    };
    measure(1 + iterations / 10, once);
    const auto nanoseconds = measure(iterations, once);
    if (rank == 0) {
      control.send(nanoseconds);
    } else {
      control.send("null");
    }
  }
}

}  // namespace bench
