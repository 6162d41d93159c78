#include <stdbool.h>

#include "_cgo_export.h"
#include "embedded.h"
#include "pathways.h"
#include "table.h"

char* pathways_slice_grant(int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                           const char* kind, pathways_slice_name* slice, uint32_t* granted) {
  if (pw_forked) return pw_forked_refusal();
  return pwGoSlice(0, devices, (int64_t*)topology, num_topology, (char*)(island ? island : ""), (char*)(kind ? kind : ""),
                   slice, granted);
}

char* pathways_slice_remap(pathways_slice_name slice, uint32_t* devices, size_t num_devices) {
  return pw_forked ? pw_forked_refusal() : pwGoSliceRemap(slice, devices, num_devices);
}

void pathways_slice_release(pathways_slice_name slice) {
  if (!pw_forked) pwGoSliceRelease(slice);
}

// For capi/public, by session. A session is its door's number, and whether the door is
// that of a cluster.

static pathways_slice_name name_of(uint64_t session, bool cluster, uint64_t number) {
  return (pathways_slice_name){.session = session << 1 | cluster, .number = number};
}

char* pw_slice_grant(uint64_t session, bool cluster, int64_t devices, const int64_t* topology, size_t num_topology,
                     const char* island, const char* kind, uint64_t* number, uint32_t* granted) {
  pathways_slice_name name = name_of(session, cluster, 0);
  char* refusal = pwGoSlice(name.session, devices, (int64_t*)topology, num_topology, (char*)island, (char*)kind, &name, granted);
  *number = name.number;
  return refusal;
}

char* pw_slice_remap(uint64_t session, bool cluster, uint64_t number, uint32_t* devices, size_t num_devices) {
  return pwGoSliceRemap(name_of(session, cluster, number), devices, num_devices);
}

void pw_slice_release(uint64_t session, bool cluster, uint64_t number) { pwGoSliceRelease(name_of(session, cluster, number)); }
