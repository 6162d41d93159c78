// Slices: devices that are granted to a session together, so that sessions use different ones. They are advisory: a
// session can also use devices that it was not granted. A refusal is "CODE: text", malloc'd.
#ifndef PATHWAYS_CAPI_SLICES_SLICES_H_
#define PATHWAYS_CAPI_SLICES_SLICES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// An owner is a session of either frontend, which number their sessions separately. 0 is none.
static inline uint64_t pw_slice_owner(uint64_t session, bool cluster) { return session << 1 | cluster; }
static inline uint64_t pw_slice_session(uint64_t owner) { return owner >> 1; }
static inline bool pw_slice_of_cluster(uint64_t owner) { return owner & 1; }

// Asks for a slice of an owner's devices and blocks until the answer comes. If the owner is 0, it becomes the newest
// PJRT client's session. Topology is num_topology sizes whose product is devices, or none: devices along the last
// dimension are neighbours. Island and kind restrict the devices; "" means any. Granted has room for them: their
// indices in the client's list.
char* pw_slice_grant(uint64_t* owner, int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                     const char* kind, uint64_t* number, uint32_t* granted);

// Asks for the devices of a slice again, as it was granted.
char* pw_slice_remap(uint64_t owner, uint64_t number, uint32_t* devices, size_t num_devices);

// Ends a grant, which also ends with its session. It does nothing if there is none.
void pw_slice_release(uint64_t owner, uint64_t number);

#endif  // PATHWAYS_CAPI_SLICES_SLICES_H_
