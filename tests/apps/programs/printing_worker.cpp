// Prints lines without flushing, then waits to be killed. "printf" and "cout" print by these;
// "buffer" gives stdout a buffer of its own before it joins; "before" prints before it joins;
// "unsynchronised" parts cout from stdout; "stranger" never joins.

#include <unistd.h>
#include <array>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string_view>

#include "tutti/job.h"

int main(int, char** arguments) {
  static std::array<char, 1 << 14> buffer;
  const std::string_view how = arguments[1];
  if (how == "buffer") std::setvbuf(stdout, buffer.data(), _IOFBF, buffer.size());
  if (how == "before") std::printf("printed before\n");
  if (how == "unsynchronised") std::ios::sync_with_stdio(false);
  std::optional<tutti::Job> job;
  if (how != "stranger") job = tutti::Job::join();
  if (how == "cout" || how == "unsynchronised") {
    std::cout << "loss " << 0.5 << '\n';
  } else {
    std::printf("loss %g\n", 0.5);
  }
  std::fprintf(stderr, "has printed\n");
  for (;;) pause();
}
