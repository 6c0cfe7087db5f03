#pragma once

// With what a random case's Trainer is made.

#include <string>

#include "exactness/random_models.h"
#include "tutti/trainer.h"

namespace tutti::test::exact {

Divide divide_of(const Choices& one);
Optimizer optimizer_of(const Choices& one);
TrainerOptions options_of(const Choices& one, const Stretch& stretch, const RandomTask& task,
                          const std::string& folder);

}  // namespace tutti::test::exact
