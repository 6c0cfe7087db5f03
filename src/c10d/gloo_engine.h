#pragma once

// Makes Gloo the engine of this process' links (comm/link/link_engine.h), unless TUTTI_LINK asks
// for another one, or for none.
//
// Threads: any. Failure: Unsupported where TUTTI_LINK asks for Gloo and this build has none.

namespace tutti {

/// The first call does it; an engine that is set already stays.
void offer_gloo_links();

}  // namespace tutti
