// Shapes: counted, and shared by the buffers and outputs that have them.
#include <stdio.h>
#include <stdlib.h>

#include "base.h"

pw_shape* pw_shape_new(PJRT_Buffer_Type type, const int64_t* dims, size_t n) {
  pw_shape* s = pw_alloc(sizeof *s + n * sizeof(int64_t));
  if (s == NULL) return NULL;
  s->refs = 1;
  s->type = type;
  s->num_dims = n;
  if (n) memcpy(s->dims, dims, n * sizeof(int64_t));
  return s;
}

void pw_shape_drop(pw_shape* s) {
  if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) free(s);
}

// Bits of an element, indexed by PJRT_Buffer_Type. Tokens take none.
static const uint8_t type_bits[] = {0,  8,  8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 64, 16, 64, 128, 8,
                                    8,  8,  8, 8,  4,  4,  0, 2,  2,  8,  8,  8,  4,  1,  1,   6,  6};

static const char* const type_names[] = {
    "invalid",       "pred",      "s8",         "s16",        "s32",      "s64",    "u8",     "u16",     "u32",
    "u64",           "f16",       "f32",        "f64",        "bf16",     "c64",    "c128",   "f8e5m2",  "f8e4m3fn",
    "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s4",        "u4",       "token",  "s2",     "u2",      "f8e4m3",
    "f8e3m4",        "f8e8m0fnu", "f4e2m1fn",   "s1",         "u1",       "f6e2m3fn", "f6e3m2fn"};

void pw_shape_text(const pw_shape* s, char* text, size_t size) {
  size_t n =
      (size_t)snprintf(text, size, "%s[", s->type < sizeof type_names / sizeof *type_names ? type_names[s->type] : "?");
  for (size_t i = 0; i < s->num_dims && n < size; i++)
    n += (size_t)snprintf(text + n, size - n, i ? ",%lld" : "%lld", (long long)s->dims[i]);
  if (n < size) snprintf(text + n, size - n, "]");
}

int pw_type_bits(PJRT_Buffer_Type type) { return type < sizeof type_bits ? type_bits[type] : 64; }

int64_t pw_shape_bytes(const pw_shape* s) {
  int64_t n = pw_type_bits(s->type);
  for (size_t i = 0; i < s->num_dims; i++) n *= s->dims[i];
  return (n + 7) / 8;
}
