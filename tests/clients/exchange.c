// Tensors of DLPack, of both kinds, and Arrow data, in and out: exchange ADDRESS.
#include "check.h"

typedef struct tensor {
  void* data;
  struct {
    int32_t type, id;
  } device;
  int32_t num_dims;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *dims, *strides;
  uint64_t byte_offset;
} tensor;

typedef struct managed {
  tensor t;
  void* context;
  void (*deleter)(struct managed*);
} managed;

typedef struct versioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct versioned*);
  uint64_t flags;
  tensor t;
} versioned;

static _Atomic int deleted;
static float* values;
static void count(managed* m) { (void)m, deleted++; }
static void count_versioned(versioned* v) { (void)v, deleted++; }

static void until_deleted(int n) {
  while (atomic_load(&deleted) < n) usleep(1000);
  CHECK(atomic_load(&deleted) == n);
}

static void in(pathways_session s, int host) {
  int64_t dims[] = {3, 4}, strides[] = {1, 3}, backward[] = {-4, 1}, repeated[] = {0, 1};
  managed m = {.t = {.data = values, .device = {1, 0}, .num_dims = 2, .dtype = {2, 32, 1}, .dims = dims},
               .deleter = count};
  versioned v = {.major = 1, .t = m.t, .deleter = count_versioned};
  pathways_array a;
  float back[12];
  // Copied: the deleter has been called when this returns.
  OK(pathways_array_from_dlpack(s, &m, 0, NULL, &a));
  CHECK(deleted == 1);
  read_into(a, PATHWAYS_WHOLE, back, sizeof back);
  CHECK(memcmp(back, values, sizeof back) == 0);
  OK(pathways_drop(a));
  OK(pathways_array_from_dlpack(s, &v, 1, NULL, &a));
  CHECK(deleted == 2);
  OK(pathways_drop(a));
  // A transpose, rows in descending order, and one row three times.
  int64_t* laid[] = {strides, backward, repeated};
  for (int k = 0; k < 3; k++) {
    managed x = m;
    x.t.strides = laid[k];
    x.t.byte_offset = k == 1 ? 32 : 0;
    OK(pathways_array_from_dlpack(s, &x, 0, NULL, &a));
    read_into(a, PATHWAYS_WHOLE, back, sizeof back);
    for (int i = 0; i < 12; i++) CHECK(back[i] == values[(k == 1 ? 8 : 0) + i / 4 * laid[k][0] + i % 4 * laid[k][1]]);
    OK(pathways_drop(a));
  }
  CHECK(deleted == 5);
  // Lent: looked at where it is, and given back with the array.
  pathways_host_options lend = {.struct_size = sizeof lend, .mode = host ? PATHWAYS_BORROW_OR_FAIL : PATHWAYS_BORROW};
  OK(pathways_array_from_dlpack(s, &v, 1, &lend, &a));
  if (host) {
    pathways_view view;
    const void* at;
    OK(pathways_array_view(a, 0, &view, &at));
    CHECK(at == values && deleted == 5);
    OK(pathways_drop(view));
  }
  OK(pathways_drop(a));
  until_deleted(6);

  int before = deleted;
  managed x = m;
  x.t.device.type = 2;
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "kind 2");
  x = m, x.t.dtype.lanes = 4;
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "4 lanes");
  x = m, x.t.dtype.bits = 31;
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "31 bits");
  x = m, x.t.num_dims = -1;
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "-1 dimensions");
  x = m, x.t.dims = (int64_t[]){3, INT64_MAX};
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "more bytes");
  x = m, x.t.strides = (int64_t[]){INT64_MAX, 1};
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "out of memory");
  x = m, x.t.data = NULL;
  FAILS(pathways_array_from_dlpack(s, &x, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "NULL");
  versioned later = v;
  later.major = 2;
  FAILS(pathways_array_from_dlpack(s, &later, 1, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "2.0");
  lend.dims = dims;
  FAILS(pathways_array_from_dlpack(s, &m, 0, &lend, &a), PATHWAYS_INVALID_ARGUMENT, "which the tensor has");
  FAILS(pathways_array_from_dlpack(s, NULL, 0, NULL, &a), PATHWAYS_INVALID_ARGUMENT, "NULL");
  CHECK(deleted == before);  // a call that fails takes nothing over
}

static void* delete_elsewhere(void* m) {
  ((managed*)m)->deleter(m);
  return NULL;
}

static void out(pathways_session s, int host) {
  pathways_array a = vector(s, values, 12), b;
  void* t;
  OK(pathways_array_to_dlpack(a, 0, 1, &t));
  versioned* v = t;
  CHECK(v->major == 1 && v->flags == 1 && v->t.device.type == 1 && v->t.num_dims == 1 && v->t.dims[0] == 12 &&
        v->t.strides[0] == 1);
  CHECK(v->t.dtype.code == 2 && v->t.dtype.bits == 32 && v->t.dtype.lanes == 1 &&
        ((float*)v->t.data)[11] == values[11]);
  if (!host) {  // bytes that came here once
    v->deleter(v);
    OK(pathways_drop(a));
    return;
  }
  // In again, as itself.
  pathways_host_options lend = {.struct_size = sizeof lend, .mode = PATHWAYS_BORROW_OR_FAIL};
  const void* data = v->t.data;
  OK(pathways_array_from_dlpack(s, v, 1, &lend, &b));
  OK(pathways_drop(a));
  pathways_view view;
  const void* at;
  OK(pathways_array_view(b, 0, &view, &at));
  CHECK(at == data && ((const float*)at)[5] == values[5]);
  OK(pathways_drop(view));
  void* m;
  OK(pathways_array_to_dlpack(b, 0, 0, &m));
  OK(pathways_drop(b));
  OK(pathways_drop(s));  // the tensor outlives the session
  CHECK(((float*)((managed*)m)->t.data)[11] == values[11]);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, delete_elsewhere, m) == 0 && pthread_join(thread, NULL) == 0);
}

// ---- Arrow ----

struct ArrowSchema {
  const char *format, *name, *metadata;
  int64_t flags, n_children;
  struct ArrowSchema **children, *dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length, null_count, offset, n_buffers, n_children;
  const void** buffers;
  struct ArrowArray **children, *dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

static void count_array(struct ArrowArray* a) { a->release = NULL, deleted++; }
static void keep_schema(struct ArrowSchema* s) { s->release = NULL; }

// A record batch from row 1 on: numbers, booleans, lists of two, and what points to them.
typedef struct {
  struct ArrowSchema schemas[5], *fields[3], *items[1];
  struct ArrowArray arrays[5], *columns[3], *values[1];
  const void* buffers[5][2];
} batch;

static void make(batch* b) {
  static const uint8_t bits[8] = {0x2d};
  static const float pairs[16] __attribute__((aligned(64))) = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const char* formats[] = {"f", "b", "+w:2", "f", "+s"};
  const char* names[] = {"numbers", "flags", "pairs", "item", "batch"};
  memset(b, 0, sizeof *b);
  for (int i = 0; i < 5; i++) {
    b->schemas[i] = (struct ArrowSchema){.format = formats[i], .name = names[i], .release = keep_schema};
    b->arrays[i] = (struct ArrowArray){.length = i == 3 ? 10 : 5,
                                       .n_buffers = i == 2 || i == 4 ? 1 : 2,
                                       .buffers = b->buffers[i],
                                       .release = count_array};
  }
  b->buffers[0][1] = values;
  b->buffers[1][1] = bits;
  b->buffers[3][1] = pairs;
  for (int i = 0; i < 3; i++) b->fields[i] = &b->schemas[i], b->columns[i] = &b->arrays[i];
  b->schemas[2].children = b->items, b->arrays[2].children = b->values;
  b->items[0] = &b->schemas[3], b->values[0] = &b->arrays[3];
  b->schemas[2].n_children = b->arrays[2].n_children = 1;
  b->schemas[4].children = b->fields, b->arrays[4].children = b->columns;
  b->schemas[4].n_children = b->arrays[4].n_children = 3;
  b->arrays[4].offset = 1, b->arrays[4].length = 4;
}

static void batches(pathways_session s) {
  for (int mode = PATHWAYS_COPY; mode <= PATHWAYS_BORROW; mode++) {
    batch b;
    make(&b);
    int before = deleted;
    pathways_host_options o = {.struct_size = sizeof o, .mode = (pathways_host_mode)mode};
    pathways_array a[3];
    OK(pathways_arrays_from_arrow(s, &b.arrays[4], &b.schemas[4], &o, a, 3));
    CHECK(b.arrays[4].release == NULL && b.schemas[4].release && (mode == PATHWAYS_BORROW || deleted == before + 1));
    float numbers[4], pairs[4][2];
    char flags[4], want[] = {0, 1, 1, 0};
    read_into(a[0], PATHWAYS_WHOLE, numbers, sizeof numbers);
    read_into(a[1], PATHWAYS_WHOLE, flags, sizeof flags);
    read_into(a[2], PATHWAYS_WHOLE, pairs, sizeof pairs);
    CHECK(memcmp(numbers, values + 1, sizeof numbers) == 0 && memcmp(flags, want, 4) == 0);
    for (int i = 0; i < 8; i++) CHECK(pairs[i / 2][i % 2] == (float)(i + 2));
    for (int i = 0; i < 3; i++) OK(pathways_drop(a[i]));
    until_deleted(before + 1);
    FAILS(pathways_arrays_from_arrow(s, &b.arrays[4], &b.schemas[4], &o, a, 3), PATHWAYS_INVALID_ARGUMENT,
          "taken before");
  }
}

#define LIE(change, word)                                                                                           \
  do {                                                                                                              \
    batch b;                                                                                                        \
    make(&b);                                                                                                       \
    change;                                                                                                         \
    FAILS(pathways_arrays_from_arrow(s, &b.arrays[4], &b.schemas[4], NULL, a, 3), PATHWAYS_INVALID_ARGUMENT, word); \
    CHECK(b.arrays[4].release == count_array);                                                                      \
  } while (0)

static char tensor_of[256];
static const char* metadata(const char* json) {
  const char* texts[] = {"ARROW:extension:name", "arrow.fixed_shape_tensor", "ARROW:extension:metadata", json};
  char* at = tensor_of;
  int32_t n = 2;
  memcpy(at, &n, 4), at += 4;
  for (int i = 0; i < 4; i++) {
    n = (int32_t)strlen(texts[i]);
    memcpy(at, &n, 4), memcpy(at + 4, texts[i], (size_t)n), at += 4 + n;
  }
  return tensor_of;
}

static void lies(pathways_session s) {
  pathways_array a[3];
  int before = deleted;
  static const uint8_t nulls[8] = {0x05};
  int64_t lengths[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 62};
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 5; i++) {
      LIE(b.arrays[i].length = lengths[k], "says that");
      LIE(b.arrays[i].offset = lengths[k], "says that");
      LIE(b.arrays[i].n_children = lengths[k], "");
      LIE(b.arrays[i].n_buffers = i == 4 ? -1 : lengths[k], "");
    }
  LIE(b.arrays[3].length = 9, "more lists");
  LIE(b.arrays[0].length = 4, "and its record batch");
  LIE(b.arrays[2].children = NULL, "children");
  LIE(b.items[0] = NULL, "children");
  LIE(b.columns[1] = NULL, "no column 1");
  LIE(b.arrays[4].children = NULL, "columns");
  LIE(b.arrays[0].buffers = NULL, "buffers");
  LIE(b.buffers[0][1] = NULL, "no buffer");
  LIE((b.buffers[0][0] = nulls, b.arrays[0].null_count = -1), "3 nulls");
  LIE((b.buffers[3][0] = nulls, b.arrays[3].null_count = -1), "nulls");
  LIE(b.schemas[0].dictionary = &b.schemas[3], "dictionary");
  const char* formats[] = {
      "", "u", "+l", "+w:", "+w:-2", "+w:2x", "+w:99999999999999999999", "+w:9223372036854775807", "tdD"};
  for (int k = 0; k < 9; k++) LIE(b.schemas[2].format = formats[k], "");
  LIE(b.schemas[2].format = NULL, "");
  const char* tensors[] = {"",
                           "{",
                           "[]",
                           "{\"shape\": [3]}",
                           "{\"shape\": [-2]}",
                           "{\"shape\": 2}",
                           "{\"shape\": [2], \"permutation\": [1]}",
                           "{\"shape\": [1, 2], \"permutation\": [0, 0]}",
                           "{\"shape\": [4611686018427387904, 4, 1]}",
                           "{\"shape\": [2]",
                           "{\"shape\": [\"a\"]}"};
  for (int k = 0; k < 11; k++) LIE(b.schemas[2].metadata = metadata(tensors[k]), "does not describe");
  batch b;
  make(&b);
  FAILS(pathways_arrays_from_arrow(s, &b.arrays[4], &b.schemas[4], NULL, a, 2), PATHWAYS_INVALID_ARGUMENT, "3 columns");
  // The first column can be shared, the second not: all is the caller's again.
  b.arrays[4].offset = 0;
  pathways_host_options o = {.struct_size = sizeof o, .mode = PATHWAYS_BORROW_OR_FAIL};
  pathways_error e = pathways_arrays_from_arrow(s, &b.arrays[4], &b.schemas[4], &o, a, 3);
  FAILS(e, PATHWAYS_FAILED_PRECONDITION, "");
  CHECK(deleted == before && b.arrays[4].release == count_array);
  b.schemas[2].metadata = metadata("{\"dim_names\": [\"a\", \"b\"], \"permutation\": [1, 0], \"shape\": [1, 2]}");
  OK(pathways_arrays_from_arrow(s, &b.arrays[4], &b.schemas[4], NULL, a, 3));
  pathways_array_info_t info = {.struct_size = sizeof info};
  OK(pathways_array_info(a[2], &info));
  CHECK(info.num_dims == 3 && info.dims[0] == 4 && info.dims[1] == 2 && info.dims[2] == 1);
  for (int i = 0; i < 3; i++) OK(pathways_drop(a[i]));
}

static void to_arrow(pathways_session s, int host) {
  struct ArrowArray data;
  struct ArrowSchema schema;
  int64_t dims[] = {3, 2, 2};
  pathways_host_options o = {
      .struct_size = sizeof o, .data = values, .type = PATHWAYS_F32, .num_dims = 3, .dims = dims};
  pathways_array a, b;
  OK(pathways_array_from_host(s, &o, &a));
  OK(pathways_array_to_arrow(a, 0, &data, &schema));
  CHECK(strcmp(schema.format, "+w:4") == 0 && data.length == 3 && data.children[0]->length == 12);
  const float* at = data.children[0]->buffers[1];
  CHECK(at[11] == values[11]);
  OK(pathways_drop(a));
  if (!host) {
    schema.release(&schema);
    data.release(&data);
    return;
  }
  o = (pathways_host_options){.struct_size = sizeof o, .mode = PATHWAYS_BORROW_OR_FAIL};
  OK(pathways_arrays_from_arrow(s, &data, &schema, &o, &b, 1));  // in again, as itself
  schema.release(&schema);
  pathways_array_info_t info = {.struct_size = sizeof info};
  OK(pathways_array_info(b, &info));
  CHECK(info.num_dims == 3 && info.dims[1] == 2 && info.dims[2] == 2);
  OK(pathways_array_to_arrow(b, 0, &data, &schema));
  CHECK(data.children[0]->buffers[1] == at);
  // The elements leave their list, and outlive it.
  struct ArrowArray child = *data.children[0];
  struct ArrowSchema item = *schema.children[0];
  data.children[0]->release = NULL, schema.children[0]->release = NULL;
  data.release(&data), schema.release(&schema);
  OK(pathways_drop(b));
  CHECK(((const float*)child.buffers[1])[11] == values[11] && strcmp(item.format, "f") == 0);
  child.release(&child), item.release(&item);
  o = (pathways_host_options){.struct_size = sizeof o,
                              .data = "\1\0\1\1\0\0\0\0\1",
                              .type = PATHWAYS_BOOL,
                              .num_dims = 1,
                              .dims = (int64_t[]){9}};
  OK(pathways_array_from_host(s, &o, &a));
  OK(pathways_array_to_arrow(a, 0, &data, &schema));
  CHECK(((const uint8_t*)data.buffers[1])[0] == 0x0d && ((const uint8_t*)data.buffers[1])[1] == 1 &&
        strcmp(schema.format, "b") == 0);
  data.release(&data), schema.release(&schema);
  OK(pathways_drop(a));
  o.num_dims = 0;
  OK(pathways_array_from_host(s, &o, &a));
  FAILS(pathways_array_to_arrow(a, 0, &data, &schema), PATHWAYS_INVALID_ARGUMENT, "scalars");
  OK(pathways_drop(a));
  o.type = PATHWAYS_BF16, o.num_dims = 1, o.dims = (int64_t[]){4};
  OK(pathways_array_from_host(s, &o, &a));
  FAILS(pathways_array_to_arrow(a, 0, &data, &schema), PATHWAYS_INVALID_ARGUMENT, "dlpack");
  OK(pathways_drop(a));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  int host = *argv[1] == 0;
  values = aligned_alloc(64, 64);
  for (int i = 0; i < 12; i++) values[i] = (float)(i * i);
  pathways_session s = open_session(argv[1], 2);
  in(s, host);
  batches(s);
  lies(s);
  to_arrow(s, host);
  out(s, host);
  if (!host) OK(pathways_drop(s));
  free(values);
  return finish();
}
