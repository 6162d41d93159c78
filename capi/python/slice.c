#include "pathways.h"
#include "slices.h"

char* pathways_slice_grant(int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                           const char* kind, pathways_slice_name* slice, uint32_t* granted) {
  *slice = (pathways_slice_name){0};
  return pw_slice_grant(&slice->session, devices, topology, num_topology, island ? island : "", kind ? kind : "",
                        &slice->number, granted);
}

char* pathways_slice_remap(pathways_slice_name slice, uint32_t* devices, size_t num_devices) {
  return pw_slice_remap(slice.session, slice.number, devices, num_devices);
}

void pathways_slice_release(pathways_slice_name slice) { pw_slice_release(slice.session, slice.number); }
