#include "pathways.h"
#include "slices.h"

char* pathways_slice_ask(int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                         const char* kind, bool exclusive, double wait, int32_t priority, pathways_slice_name* slice) {
  *slice = (pathways_slice_name){0};
  const pw_slice_want want = {.devices = devices,
                              .topology = topology,
                              .num_topology = num_topology,
                              .island = island ? island : "",
                              .kind = kind ? kind : "",
                              .exclusive = exclusive,
                              .wait = wait,
                              .priority = priority};
  return pw_slice_ask(&slice->session, &want, &slice->number);
}

char* pathways_slice_wait(pathways_slice_name slice, double seconds, uint32_t* devices, size_t num_devices,
                          int64_t* position, char** lacks) {
  return pw_slice_wait(slice.session, slice.number, seconds, devices, num_devices, position, lacks);
}

char* pathways_slice_remap(pathways_slice_name slice, uint32_t* devices, size_t num_devices) {
  return pw_slice_remap(slice.session, slice.number, devices, num_devices);
}

void pathways_slice_release(pathways_slice_name slice) { pw_slice_release(slice.session, slice.number); }
