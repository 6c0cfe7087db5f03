#pragma once

// What decides how libtorch and the libraries below it round, besides the program: what workers
// compare before they train together, and what a checkpoint notes.
//
// Threads: pure functions. Failure: none.

#include <string>

#include "base/cpu_level.h"
#include "base/processor.h"
#include "run/files/run_fingerprint.h"

namespace tutti {

/// As one worker found it.
struct Arithmetic {
  Processor processor = {};
  LibrarySettings settings = {};     ///< of libtorch, MKL and oneDNN, as far as they are set
  std::string instruction_set = {};  ///< that libtorch's own kernels use: "AVX2"
  std::string torch = {};            ///< its version, as those below
  std::string mkl = {};              ///< empty: libtorch was built without MKL
  std::string mkl_branch = {};       ///< that MKL keeps to: "AVX2"; empty: it does not tell
  std::string onednn = {};
  std::string c_library = {};
};

/// The instruction set that libtorch's kernels use, and what MKL and oneDNN are told: "AVX2,
/// MKL_CBWR=AVX2, ONEDNN_MAX_CPU_ISA=AVX2".
std::string instruction_set_of(const Arithmetic& arithmetic);

/// Facts that must be equal on all workers. Where a level of `tutti run --cpu` is in force that
/// bounds every library and that MKL obeys, processors may be of several types.
RunFingerprint compared_facts(const Arithmetic& arithmetic);
/// By the name of a compared fact, how workers come to share it.
RunFingerprint remedies_of_facts(Architecture architecture = kArchitecture);

/// Facts for a checkpoint: libtorch with the libraries below it, instruction set, processor.
RunFingerprint noted_facts(const Arithmetic& arithmetic);
/// How the facts of a checkpoint differ from the present ones, one a line. An older checkpoint has
/// shorter ones, such as a version without those of the libraries below: only what it has counts.
std::string noted_differences(const RunFingerprint& then, RunFingerprint now);

}  // namespace tutti
