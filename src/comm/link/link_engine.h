#pragma once

// The engine by which a process makes its links. Who brings one (c10d/gloo_engine.h, the program, a
// test) sets it, before the groups that need links are made; the core itself has TCP and MPI.
//
// Threads: any. Failure: what a maker throws.

#include <span>
#include <string>

#include "comm/link/link_request.h"

namespace tutti {

/// Replaces the engine; one without a name is none.
void set_link_engine(LinkEngine engine);
/// Makes an engine where none is set and TUTTI_LINK is auto or gloo. Called before main() by what
/// is linked into a program.
void offer_link_engine(LinkEngine (*make)());
/// The one that was set, else the one that TUTTI_LINK asks for or that is offered, else TCP. Throws
/// Unsupported where Gloo is asked for and not there.
LinkEngine link_engine();

/// Throws Mismatch with two of the workers' `ranks` where the `names` of their engines differ.
void require_one_engine(std::span<const std::string> names, std::span<const int> ranks);

/// Whether links have been asked for: from then on another engine would divide the job.
bool link_engine_is_used();
void note_link_engine_is_used();

}  // namespace tutti
