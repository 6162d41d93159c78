// Slices: devices that are granted to a session together, so that sessions use different ones. Unless devices are in an
// exclusive slice of another session, a session can also use those that it was not granted. A refusal is "CODE: text",
// malloc'd.
#ifndef PATHWAYS_CAPI_SLICES_SLICES_H_
#define PATHWAYS_CAPI_SLICES_SLICES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// An owner is a session of either frontend, which number their sessions separately. 0 is none.
static inline uint64_t pw_slice_owner(uint64_t session, bool cluster) { return session << 1 | cluster; }
static inline uint64_t pw_slice_session(uint64_t owner) { return owner >> 1; }
static inline bool pw_slice_of_cluster(uint64_t owner) { return owner & 1; }

// What is asked for. Topology is num_topology sizes whose product is devices, or none: devices along the last dimension
// are neighbors. Island and kind restrict the devices; "" means any.
typedef struct {
  int64_t devices;
  const int64_t* topology;
  size_t num_topology;
  const char *island, *kind;
  bool exclusive;    // no other session uses the devices while the slice has them
  double wait;       // seconds for devices that others have; 0 is not at all, infinity without end
  int32_t priority;  // among requests that wait
} pw_slice_want;

// Asks for a slice of an owner's devices, and returns at once. If the owner is 0, it becomes the newest PJRT client's
// session.
char* pw_slice_ask(uint64_t* owner, const pw_slice_want* want, uint64_t* number);

// Waits for a slice that was asked for, for so many seconds at most. When it was granted, position is 0 and devices has
// their indices in the client's list. Otherwise position is the request's place in the queue, beginning with 1, and
// lacks tells people which sessions have the devices that it lacks; the caller frees it.
char* pw_slice_wait(uint64_t owner, uint64_t number, double seconds, uint32_t* devices, size_t num_devices,
                    int64_t* position, char** lacks);

// Asks for the devices of a slice again, as it was granted.
char* pw_slice_remap(uint64_t owner, uint64_t number, uint32_t* devices, size_t num_devices);

// Ends a grant or cancels a request; both also end with their session. It does nothing if there is none.
void pw_slice_release(uint64_t owner, uint64_t number);

#endif  // PATHWAYS_CAPI_SLICES_SLICES_H_
