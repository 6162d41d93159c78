// Dense bytes as Arrow data.
#include <stdio.h>
#include <stdlib.h>

#include "arrow.h"

const char pc_arrow_tensor[] = "arrow.fixed_shape_tensor", pc_arrow_name[] = "ARROW:extension:name",
           pc_arrow_metadata[] = "ARROW:extension:metadata";

static const struct {
  char format[2];
  uint8_t type;
} types[] = {{"b", PATHWAYS_BOOL}, {"c", PATHWAYS_S8},  {"s", PATHWAYS_S16}, {"i", PATHWAYS_S32},
             {"l", PATHWAYS_S64},  {"C", PATHWAYS_U8},  {"S", PATHWAYS_U16}, {"I", PATHWAYS_U32},
             {"L", PATHWAYS_U64},  {"e", PATHWAYS_F16}, {"f", PATHWAYS_F32}, {"g", PATHWAYS_F64}};
enum { kTypes = sizeof types / sizeof *types };

const char* pc_arrow_format(pathways_type type) {
  for (size_t t = 0; t < kTypes; t++)
    if (types[t].type == type) return types[t].format;
  return NULL;
}

pathways_type pc_arrow_type(const char* format) {
  for (size_t t = 0; t < kTypes; t++)
    if (strcmp(types[t].format, format) == 0) return types[t].type;
  return 0;
}

// shown is the memory that an exported array and the elements of its list need.
typedef struct {
  _Atomic int32_t refs;
  void (*drop)(void* owner);
  void* owner;
  void* bits;
  const void* buffers[2];  // of the elements
  const void* nothing[1];  // of the list
  struct ArrowArray child, *children[1];
} shown;

static void release_array(struct ArrowArray* a) {
  for (int64_t i = 0; i < a->n_children; i++)
    if (a->children[i]->release) a->children[i]->release(a->children[i]);
  a->release = NULL;
  shown* e = a->private_data;
  if (atomic_fetch_sub(&e->refs, 1) != 1) return;
  if (e->drop) e->drop(e->owner);
  free(e->bits);
  free(e);
}

// pack writes one bit for each byte, which is 0 or 1.
static void pack(const uint8_t* bytes, int64_t count, uint8_t* bits) {
  int64_t i = 0;
  for (uint64_t each; i + 8 <= count; i += 8) {
    memcpy(&each, bytes + i, sizeof each);
    // The product's highest byte collects bit 0 of byte k as its bit k.
    bits[i / 8] = (uint8_t)((each & UINT64_C(0x0101010101010101)) * UINT64_C(0x0102040810204080) >> 56);
  }
  for (; i < count; i++) bits[i / 8] |= (uint8_t)((bytes[i] & 1) << (i % 8));
}

static int64_t product(const int64_t* dims, size_t n) {
  int64_t size = 1;
  for (size_t d = 0; d < n; d++) size *= dims[d];
  return size;
}

bool pc_arrow_show(pathways_type type, const int64_t* dims, size_t num_dims, const void* bytes,
                   void (*drop)(void* owner), void* owner, struct ArrowArray* data) {
  int64_t count = product(dims, num_dims);
  shown* e = pw_zeros(1, sizeof *e);
  uint8_t* bits = e && type == PATHWAYS_BOOL ? pw_zeros(1, (size_t)count / 8 + 1) : NULL;
  if (e == NULL || (type == PATHWAYS_BOOL && bits == NULL)) {
    free(e);
    return false;
  }
  e->refs = 1;
  e->buffers[1] = bytes;
  if (type == PATHWAYS_BOOL) {
    e->buffers[1] = e->bits = bits;
    pack(bytes, count, e->bits);
    drop(owner);
  } else {
    e->drop = drop;
    e->owner = owner;
  }
  *data = (struct ArrowArray){
      .length = dims[0], .n_buffers = 2, .buffers = e->buffers, .release = release_array, .private_data = e};
  if (num_dims == 1) return true;
  e->child = *data;
  e->child.length = count;
  e->children[0] = &e->child;
  e->refs = 2;
  data->n_buffers = 1;
  data->buffers = e->nothing;
  data->n_children = 1;
  data->children = e->children;
  return true;
}

typedef struct {
  char format[32];
  char *name, *metadata;
  struct ArrowSchema child, *children[1];
} told;

static void release_schema(struct ArrowSchema* s) {
  for (int64_t i = 0; i < s->n_children; i++)
    if (s->children[i]->release) s->children[i]->release(s->children[i]);
  s->release = NULL;
  told* t = s->private_data;
  if (t == NULL) return;
  free(t->name);
  free(t->metadata);
  free(t);
}

static char* pair(char* to, const char* text, size_t size) {
  int32_t n = (int32_t)size;
  memcpy(to, &n, sizeof n);
  memcpy(to + sizeof n, text, size);
  return to + sizeof n + size;
}

bool pc_arrow_describe(pathways_type type, const int64_t* dims, size_t num_dims, const char* name,
                       struct ArrowSchema* schema) {
  const char* format = pc_arrow_format(type);
  *schema = (struct ArrowSchema){.format = format, .name = "", .release = release_schema};
  if (num_dims == 1 && *name == 0) return true;  // the program's static texts are enough
  told* t = schema->private_data = pw_zeros(1, sizeof *t);
  if (t) schema->name = t->name = pw_copy_text(name);
  if (schema->name == NULL || t == NULL) {
    schema->release(schema);
    return false;
  }
  if (num_dims == 1) return true;
  char json[32 * PATHWAYS_MAX_DIMS];
  int at = snprintf(json, sizeof json, "{\"shape\": [");
  for (size_t d = 1; d < num_dims; d++)
    at += snprintf(json + at, sizeof json - (size_t)at, d == 1 ? "%lld" : ", %lld", (long long)dims[d]);
  at += snprintf(json + at, sizeof json - (size_t)at, "]}");
  size_t words = strlen(pc_arrow_tensor) + strlen(pc_arrow_name) + strlen(pc_arrow_metadata);
  t->metadata = pw_alloc(5 * sizeof(int32_t) + words + (size_t)at);
  if (t->metadata == NULL) {
    schema->release(schema);
    return false;
  }
  int32_t pairs = 2;
  memcpy(t->metadata, &pairs, sizeof pairs);
  char* to = pair(t->metadata + sizeof pairs, pc_arrow_name, strlen(pc_arrow_name));
  to = pair(to, pc_arrow_tensor, strlen(pc_arrow_tensor));
  to = pair(to, pc_arrow_metadata, strlen(pc_arrow_metadata));
  pair(to, json, (size_t)at);
  snprintf(t->format, sizeof t->format, "+w:%lld", (long long)product(dims + 1, num_dims - 1));
  t->child = (struct ArrowSchema){.format = format, .name = "item", .release = release_schema};
  t->children[0] = &t->child;
  schema->format = t->format;
  schema->metadata = t->metadata;
  schema->n_children = 1;
  schema->children = t->children;
  return true;
}
