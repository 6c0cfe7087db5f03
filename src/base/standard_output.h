#pragma once

// How the C library buffers what a program prints.

namespace tutti {

/// Makes each line go to the pipe behind stdout as soon as it is complete, as on a terminal, so
/// that it is not lost when the process is killed. Changes nothing where stdout is no pipe, or
/// where the program has given it a buffer (setvbuf). std::cout follows stdout unless
/// sync_with_stdio(false).
void print_whole_lines_at_once();

}  // namespace tutti
