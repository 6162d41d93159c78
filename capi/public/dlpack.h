// The structs of DLPack's ABI, versioned and unversioned.
#ifndef PATHWAYS_CAPI_PUBLIC_DLPACK_H_
#define PATHWAYS_CAPI_PUBLIC_DLPACK_H_

#include "public.h"

enum { PC_DL_HOST = 1 };  // DLDeviceType

typedef struct {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t num_dims;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t* dims;
  int64_t* strides;  // in elements; NULL: dense
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
  dl_tensor tensor;
  void* context;
  void (*deleter)(struct dl_managed* self);
} dl_managed;

typedef struct dl_versioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct dl_versioned* self);
  uint64_t flags;
  dl_tensor tensor;
} dl_versioned;

_Static_assert(sizeof(dl_tensor) == 48 && sizeof(dl_managed) == 64 && sizeof(dl_versioned) == 80, "the ABI of DLPack");

// pc_dl_type writes how DLPack names a type of elements; bits are 0 if it does not have the type.
void pc_dl_type(pathways_type type, uint8_t* code, uint8_t* bits);

#endif  // PATHWAYS_CAPI_PUBLIC_DLPACK_H_
