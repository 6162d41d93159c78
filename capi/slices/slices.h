// Slices: devices that a session is granted together, so that it keeps out of others'
// way. What is not granted can be used as well. A refusal is "CODE: text", malloc'd.
#ifndef PATHWAYS_CAPI_SLICES_SLICES_H_
#define PATHWAYS_CAPI_SLICES_SLICES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// An owner is a session of either front end: each numbers its own. 0 is none.
static inline uint64_t pw_slice_owner(uint64_t session, bool cluster) { return session << 1 | cluster; }
static inline uint64_t pw_slice_session(uint64_t owner) { return owner >> 1; }
static inline bool pw_slice_of_cluster(uint64_t owner) { return owner & 1; }

// Asks for a slice of an owner's devices and waits for the answer; where the owner is 0,
// of those of the PJRT client made last, whose session it becomes. Topology is num_topology
// sizes whose product is devices, or none: the last dimension lies on neighbours. Island and
// kind say of what the devices are to be; "" is any. Granted has room for them: their places
// in the client's list.
char* pw_slice_grant(uint64_t* owner, int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                     const char* kind, uint64_t* number, uint32_t* granted);

// Asks for the devices of a slice again, by what it was granted by.
char* pw_slice_remap(uint64_t owner, uint64_t number, uint32_t* devices, size_t num_devices);

// Ends a grant; it ends with its session, too. It does nothing where there is none.
void pw_slice_release(uint64_t owner, uint64_t number);

#endif  // PATHWAYS_CAPI_SLICES_SLICES_H_
