#pragma once

// What a random case's workers do, and what they say of every step.

#include <string>
#include <vector>

#include "exactness/random_case.h"
#include "tutti/job.h"

namespace tutti::test::exact {

/// Lines "step 3 parameter 0.weight: …", one for each thing that the number of workers must not
/// change.
using Transcript = std::vector<std::string>;

/// A refusal at construction is a line "refused: …".
inline constexpr const char* kRefused = "refused: ";

/// Trains the steps of the stretch; what is to go on lies in `folder`.
Transcript train_random(const Choices& one, const Job& job, const Stretch& stretch,
                        const std::string& folder);

/// What torch does when it is first used is done before processes are forked.
void warm_up_torch();

/// The steps' log that a stretch of the case has written to the folder.
std::string log_of(const Stretch& stretch, const std::string& folder);

}  // namespace tutti::test::exact
