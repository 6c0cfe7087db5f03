// Prints lines without flushing, then waits to be killed. "printf" and "cout" print by these;
// "buffer" gives stdout a buffer of its own before it joins; "before" prints before it joins.

#include <unistd.h>
#include <array>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "tutti/job.h"

int main(int, char** arguments) {
  static std::array<char, 1 << 14> buffer;
  const std::string_view how = arguments[1];
  if (how == "buffer") std::setvbuf(stdout, buffer.data(), _IOFBF, buffer.size());
  if (how == "before") std::printf("printed before\n");
  const auto job = tutti::Job::join();
  if (how == "cout") {
    std::cout << "loss " << 0.5 << '\n';
  } else {
    std::printf("loss %g\n", 0.5);
  }
  std::fprintf(stderr, "has printed\n");
  for (;;) pause();
}
