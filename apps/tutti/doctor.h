#pragma once

// `tutti doctor`: what this machine offers for training.

namespace tutti::command {

/// Prints it. Returns 1 when something would stop training, else 0.
int doctor(bool as_json);

}  // namespace tutti::command
