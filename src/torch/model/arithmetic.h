#pragma once

// What decides how libtorch and the libraries below it round, besides the program and its threads.
//
// Threads: any. Failure: none.

#include <string>

#include "run/run_fingerprint.h"

namespace tutti {

/// The instruction set that libtorch's kernels use in this process, and the variables that tell MKL
/// and oneDNN theirs, as far as they are set: "AVX2, MKL_CBWR=COMPATIBLE".
std::string instruction_set();
/// Version of libtorch, instruction set and processor.
RunFingerprint arithmetic_facts();

}  // namespace tutti
