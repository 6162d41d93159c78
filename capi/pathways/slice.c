#include "_cgo_export.h"
#include "door.h"
#include "pathways.h"
#include "table.h"

char* pathways_slice_grant(int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                           const char* kind, pathways_slice* slice, uint32_t* granted) {
  if (pw_forked) return pw_forked_refusal();
  return pwGoSlice(devices, (int64_t*)topology, num_topology, (char*)(island ? island : ""), (char*)(kind ? kind : ""),
                   slice, granted);
}

char* pathways_slice_remap(pathways_slice slice, uint32_t* devices, size_t num_devices) {
  return pw_forked ? pw_forked_refusal() : pwGoSliceRemap(slice, devices, num_devices);
}

void pathways_slice_release(pathways_slice slice) {
  if (!pw_forked) pwGoSliceRelease(slice);
}
