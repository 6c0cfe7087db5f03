#pragma once

// What decides how libtorch and the libraries below it round in this process, besides the program
// and its threads.
//
// Threads: any. Failure: none.

#include <string>

#include "run/files/arithmetic_facts.h"

namespace tutti {

Arithmetic read_arithmetic();
/// instruction_set_of() this process.
std::string instruction_set();
/// noted_facts() of this process.
RunFingerprint arithmetic_facts();
/// The level of `tutti run --cpu` that is in force; "" where none is.
std::string cpu_level();

}  // namespace tutti
