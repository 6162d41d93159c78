#include "slices.h"

#include "_cgo_export.h"
#include "base.h"

char* pw_slice_grant(uint64_t* owner, int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                     const char* kind, uint64_t* number, uint32_t* granted) {
  if (pw_forked) return pw_forked_refusal();
  return pwGoSliceGrant(owner, devices, (int64_t*)topology, num_topology, (char*)island, (char*)kind, number, granted);
}

char* pw_slice_remap(uint64_t owner, uint64_t number, uint32_t* devices, size_t num_devices) {
  return pw_forked ? pw_forked_refusal() : pwGoSliceRemap(owner, number, devices, num_devices);
}

void pw_slice_release(uint64_t owner, uint64_t number) {
  if (!pw_forked) pwGoSliceRelease(owner, number);
}
