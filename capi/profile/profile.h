// The profiler that the function tables of this library offer to PJRT clients, by PJRT's Profiler extension: JAX finds
// it when it loads the library, and asks it for its planes in each jax.profiler.trace.
#ifndef PATHWAYS_CAPI_PROFILE_PROFILE_H_
#define PATHWAYS_CAPI_PROFILE_PROFILE_H_

#include "base.h"

// pw_profiler_extension makes an extension for a table; the table keeps it.
PJRT_Extension_Base* pw_profiler_extension(void);

#endif  // PATHWAYS_CAPI_PROFILE_PROFILE_H_
