// DLPack tensors, versioned and unversioned.
#include <stdlib.h>

#include "dlpack.h"

enum { kHost = PC_DL_HOST, kCudaHost = 3 };  // DLDeviceType
enum {
  kInt,
  kUInt,
  kFloat,
  kHandle,
  kBfloat,
  kComplex,
  kBool,
  kF8E3M4,
  kF8E4M3,
  kF8E4M3B11FNUZ,
  kF8E4M3FN,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0FNU
};
enum { kReadOnly = 1, kMajor = 1, kMinor = 0 };

static const struct {
  uint8_t type, code, bits;
} types[] = {{PATHWAYS_BOOL, kBool, 8},           {PATHWAYS_S8, kInt, 8},
             {PATHWAYS_S16, kInt, 16},            {PATHWAYS_S32, kInt, 32},
             {PATHWAYS_S64, kInt, 64},            {PATHWAYS_U8, kUInt, 8},
             {PATHWAYS_U16, kUInt, 16},           {PATHWAYS_U32, kUInt, 32},
             {PATHWAYS_U64, kUInt, 64},           {PATHWAYS_F16, kFloat, 16},
             {PATHWAYS_F32, kFloat, 32},          {PATHWAYS_F64, kFloat, 64},
             {PATHWAYS_BF16, kBfloat, 16},        {PATHWAYS_C64, kComplex, 64},
             {PATHWAYS_C128, kComplex, 128},      {PATHWAYS_F8E5M2, kF8E5M2, 8},
             {PATHWAYS_F8E4M3FN, kF8E4M3FN, 8},   {PATHWAYS_F8E4M3B11FNUZ, kF8E4M3B11FNUZ, 8},
             {PATHWAYS_F8E5M2FNUZ, kF8E5M2FNUZ, 8}, {PATHWAYS_F8E4M3FNUZ, kF8E4M3FNUZ, 8},
             {PATHWAYS_F8E4M3, kF8E4M3, 8},       {PATHWAYS_F8E3M4, kF8E3M4, 8},
             {PATHWAYS_F8E8M0FNU, kF8E8M0FNU, 8}};
enum { kTypes = sizeof types / sizeof *types };

void pc_dl_type(pathways_type type, uint8_t* code, uint8_t* bits) {
  size_t i = 0;
  while (i < kTypes && types[i].type != type) i++;
  *code = i < kTypes ? types[i].code : 0;
  *bits = i < kTypes ? types[i].bits : 0;
}

// ---- in ----

static void delete_managed(void* tensor) {
  dl_managed* t = tensor;
  if (t->deleter) t->deleter(t);
}

static void delete_versioned(void* tensor) {
  dl_versioned* t = tensor;
  if (t->deleter) t->deleter(t);
}

// describe converts a tensor to options of a put.
static pathways_error describe(const dl_tensor* t, pathways_host_options* o, int64_t* strides) {
  if (t->device.type != kHost && t->device.type != kCudaHost)
    return pc_fail(
        PATHWAYS_INVALID_ARGUMENT,
        "array_from_dlpack: the tensor is on a device of kind %d: expected host memory (1); copy it there first",
        (int)t->device.type);
  if (t->num_dims < 0 || t->num_dims > PATHWAYS_MAX_DIMS || (t->num_dims && t->dims == NULL))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "array_from_dlpack: the tensor has %d dimensions: expected at most %d, with their sizes",
                   (int)t->num_dims, PATHWAYS_MAX_DIMS);
  size_t i = 0;
  while (i < kTypes && (types[i].code != t->dtype.code || types[i].bits != t->dtype.bits)) i++;
  if (i == kTypes || t->dtype.lanes != 1)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "array_from_dlpack: elements of code %d with %d bits and %d lanes are no array's here",
                   t->dtype.code, t->dtype.bits, t->dtype.lanes);
  o->type = (pathways_type)types[i].type;
  o->num_dims = (size_t)t->num_dims;
  o->dims = t->dims;
  o->data = t->data ? (const char*)t->data + t->byte_offset : NULL;
  for (int32_t d = 0; t->strides && d < t->num_dims; d++) {
    int64_t reach;
    if (__builtin_mul_overflow(t->strides[d], types[i].bits / 8, &strides[d]) ||
        __builtin_mul_overflow(strides[d], t->dims[d], &reach))
      return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                     "array_from_dlpack: dimension %d has a stride of %lld elements, which reaches out of memory",
                     (int)d, (long long)t->strides[d]);
  }
  if (t->strides) o->byte_strides = strides;
  return 0;
}

pathways_error pathways_array_from_dlpack(pathways_session session, void* tensor, int versioned,
                                          const pathways_host_options* options, pathways_array* array) {
  static const pathways_host_options none = {.struct_size = sizeof none};
  if (options == NULL) options = &none;
  PC_READ(pathways_host_options, o, options, "pathways_host_options");
  if (tensor == NULL) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_dlpack: the tensor is NULL");
  if (o.data || o.type || o.num_dims || o.dims || o.byte_strides || o.released)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "array_from_dlpack: the options name data, type, dimensions, strides or released, which the tensor "
                   "has: expected 0");
  dl_versioned* v = versioned ? tensor : NULL;
  if (v && v->major != kMajor)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_dlpack: the tensor is of DLPack %u.%u: expected 1", v->major,
                   v->minor);
  int64_t strides[PATHWAYS_MAX_DIMS];
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  pathways_error err = describe(v ? &v->tensor : &((dl_managed*)tensor)->tensor, &o, strides);
  if (err == 0) {
    void (*release)(void*) = v ? delete_versioned : delete_managed;
    if (o.mode != PATHWAYS_COPY) {
      o.released = release;
      o.released_arg = tensor;
    }
    err = pc_put(s, &o, false, array);
    if (err == 0 && o.mode == PATHWAYS_COPY) release(tensor);
  }
  pc_let(s);
  return err;
}

// ---- out ----

typedef struct {
  union {
    dl_managed managed;
    dl_versioned versioned;
  };
  pathways_view view;
  int64_t dims[PATHWAYS_MAX_DIMS], strides[PATHWAYS_MAX_DIMS];
} shown;

static void drop_managed(dl_managed* t) {
  pc_discard(((shown*)t)->view);
  free(t);
}

static void drop_versioned(dl_versioned* t) {
  pc_discard(((shown*)t)->view);
  free(t);
}

pathways_error pathways_array_to_dlpack(pathways_array array, int32_t shard, int versioned, void** tensor) {
  if (tensor == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "array_to_dlpack: the tensor is NULL: expected where to write its address");
  pathways_array_info_t info = {.struct_size = sizeof info};
  PC_TRY(pathways_array_info(array, &info));
  size_t i = 0;
  while (i < kTypes && types[i].type != info.type) i++;
  if (i == kTypes)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_to_dlpack: DLPack has no type for elements of type %d",
                   (int)info.type);
  shown* e = pw_zeros(1, sizeof *e);
  if (e == NULL) return pc_short("a tensor", sizeof *e);
  pathways_view view;
  const void* data;
  pathways_error err = pathways_array_view(array, shard, &view, &data);
  if (err) {
    free(e);
    return err;
  }
  e->view = view;
  dl_tensor t = {.data = (void*)data,
                 .device = {kHost, 0},
                 .num_dims = info.num_dims,
                 .dtype = {types[i].code, types[i].bits, 1},
                 .dims = e->dims,
                 .strides = e->strides};
  int64_t at = 1;
  for (int32_t d = info.num_dims; d-- > 0;) {
    e->dims[d] = info.shard_dims[d];
    e->strides[d] = at;
    at *= e->dims[d] ? e->dims[d] : 1;
  }
  if (versioned) {
    e->versioned = (dl_versioned){
        .major = kMajor, .minor = kMinor, .context = e, .deleter = drop_versioned, .flags = kReadOnly, .tensor = t};
  } else {
    e->managed = (dl_managed){.tensor = t, .context = e, .deleter = drop_managed};
  }
  *tensor = e;
  return 0;
}
