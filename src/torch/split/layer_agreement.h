#pragma once

// What the members of a group agree on when they make a layer together.
//
// Threads: one. Failure: Mismatch, OutOfMemory; that of the group's collectives.

#include <cstdint>
#include <optional>
#include <string>

#include "run/files/run_fingerprint.h"
#include "tutti/group.h"

namespace tutti {

/// Compares on all members which layer they make; Mismatch on all, with what differs and on which
/// rank, where they do not make the same. `what` names it: "ParallelLinear". Collective.
void require_same_layer(const Group& group, const std::string& what, const RunFingerprint& facts);

/// The same, and the layer's seed: the one given, or one that rank 0's generator draws, as those of
/// all members do. Collective.
std::uint64_t agree_on_layer(const Group& group, const std::string& what, RunFingerprint facts,
                             std::optional<std::uint64_t> seed);

/// OutOfMemory on all members, with the figures, where `largest_member` bytes for each of them are
/// more than one of them may have. Collective.
void require_room(const Group& group, const std::string& what, std::uint64_t largest_member);

}  // namespace tutti
