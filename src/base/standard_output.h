#pragma once

// How the C library buffers what a program prints.

namespace tutti {

/// From now on a line goes to the pipe behind stdout as soon as it is complete, as on a terminal,
/// and so is not lost when the process is killed. Changes nothing where stdout is no pipe, or where
/// the program has given it a buffer (setvbuf). std::cout follows stdout unless
/// sync_with_stdio(false).
void print_whole_lines_at_once();

}  // namespace tutti
