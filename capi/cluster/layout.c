// Arrays in host memory: dense and row-major on the wire, with strides if the caller wants them. An element narrower
// than a byte takes a whole byte.
#include <stdlib.h>

#include "cluster.h"

size_t pr_element_size(PJRT_Buffer_Type type) { return ((size_t)pw_type_bits(type) + 7) / 8; }

int64_t pr_host_bytes(const pw_shape* s) {
  int64_t n = (int64_t)pr_element_size(s->type);
  for (size_t i = 0; i < s->num_dims; i++) n *= s->dims[i];
  return n;
}

bool pr_dense(const int64_t* dims, const int64_t* strides, size_t n, size_t element) {
  for (size_t i = 0; i < n; i++)
    if (dims[i] == 0) return true;
  int64_t want = (int64_t)element;
  for (size_t i = n; i-- > 0;) {
    if (dims[i] != 1 && strides[i] != want) return false;
    want *= dims[i];
  }
  return true;
}

#define LOOP(type)                                                                                         \
  for (int64_t i = 0; i < count; i++, strided += stride, dense += sizeof(type))                             \
    if (out) memcpy(strided, dense, sizeof(type));                                                          \
    else memcpy(dense, strided, sizeof(type))

// copy_line copies one line of elements, between dense bytes and bytes a stride apart.
static void copy_line(char* dense, char* strided, int64_t count, int64_t stride, size_t element, bool out) {
  if (stride == (int64_t)element) {
    if (out) memcpy(strided, dense, (size_t)count * element);
    else memcpy(dense, strided, (size_t)count * element);
    return;
  }
  switch (element) {
    case 1: LOOP(uint8_t); break;
    case 2: LOOP(uint16_t); break;
    case 4: LOOP(uint32_t); break;
    case 8: LOOP(uint64_t); break;
    default: LOOP(struct { char bytes[16]; }); break;
  }
}

static void walk(char* dense, char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t element,
                 size_t step, bool out) {
  if (n == 0) {
    copy_line(dense, strided, 1, (int64_t)element, element, out);
    return;
  }
  if (n == 1) {
    copy_line(dense, strided, dims[0], strides[0], element, out);
    return;
  }
  step /= (size_t)dims[0];
  for (int64_t i = 0; i < dims[0]; i++)
    walk(dense + (size_t)i * step, strided + i * strides[0], dims + 1, strides + 1, n - 1, element, step, out);
}

static void copy(char* dense, char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t element,
                 bool out) {
  size_t step = element;
  for (size_t i = 0; i < n; i++) step *= (size_t)dims[i];
  if (step) walk(dense, strided, dims, strides, n, element, step, out);
}

void pr_pack(char* dense, const char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t element) {
  copy(dense, (char*)strided, dims, strides, n, element, false);
}

void pr_unpack(char* strided, const char* dense, const int64_t* dims, const int64_t* strides, size_t n,
               size_t element) {
  copy((char*)dense, strided, dims, strides, n, element, true);
}

PJRT_Error* pr_layout_strides(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t n, size_t element,
                              int64_t* strides) {
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) {
    if (layout->strides.num_byte_strides != n)
      return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a layout has %zu strides, and the array %zu dimensions",
                      layout->strides.num_byte_strides, n);
    if (n) memcpy(strides, layout->strides.byte_strides, n * sizeof *strides);
    return NULL;
  }
  if (layout->tiled.num_tiles)
    return pw_error(PJRT_Error_Code_UNIMPLEMENTED, "a layout with tiles: bytes of a cluster's arrays are dense");
  if (layout->tiled.minor_to_major_size != n)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a layout orders %zu dimensions, and the array has %zu",
                    layout->tiled.minor_to_major_size, n);
  int64_t at = (int64_t)element;
  for (size_t i = 0; i < n; i++) strides[i] = -1;
  for (size_t i = 0; i < n; i++) {
    int64_t d = layout->tiled.minor_to_major[i];
    if (d < 0 || (size_t)d >= n || strides[d] >= 0)
      return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a layout does not name every dimension of the array once");
    strides[d] = at;
    at *= dims[d] ? dims[d] : 1;
  }
  return NULL;
}
