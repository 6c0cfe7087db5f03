#pragma once

// A worker's board in memory of the test's own.

#include <cstddef>
#include <vector>

#include "sync/nodes/step_board.h"

namespace tutti::test {

class OwnBoard {
 public:
  explicit OwnBoard(std::size_t parameters)
      : memory_(bytes_of_sections<StepBoard>(parameters, std::size_t{0}) / sizeof(Line)),
        sections_(memory_.front().bytes),
        board_(sections_, parameters, 0) {}
  OwnBoard(const OwnBoard&) = delete;
  OwnBoard& operator=(const OwnBoard&) = delete;
  const StepBoard& operator*() const { return board_; }
  const StepBoard* operator->() const { return &board_; }

 private:
  struct alignas(kSectionAlignment) Line {
    std::byte bytes[kSectionAlignment];
  };
  std::vector<Line> memory_;
  Sections sections_;
  StepBoard board_;
};

}  // namespace tutti::test
