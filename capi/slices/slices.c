#include "slices.h"

#include "_cgo_export.h"
#include "base.h"

char* pw_slice_ask(uint64_t* owner, const pw_slice_want* want, uint64_t* number) {
  return pw_forked ? pw_forked_refusal() : pwGoSliceAsk(owner, (pw_slice_want*)want, number);
}

char* pw_slice_wait(uint64_t owner, uint64_t number, double seconds, uint32_t* devices, size_t num_devices,
                    int64_t* position, char** lacks) {
  *position = 0;
  *lacks = NULL;
  if (pw_forked) return pw_forked_refusal();
  return pwGoSliceWait(owner, number, seconds, devices, num_devices, position, lacks);
}

char* pw_slice_remap(uint64_t owner, uint64_t number, uint32_t* devices, size_t num_devices) {
  return pw_forked ? pw_forked_refusal() : pwGoSliceRemap(owner, number, devices, num_devices);
}

void pw_slice_release(uint64_t owner, uint64_t number) {
  if (!pw_forked) pwGoSliceRelease(owner, number);
}
