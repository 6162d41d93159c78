// Tensors of DLPack in and out, of both kinds: exchange ADDRESS.
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
  managed m = {.t = {.data = values, .device = {1, 0}, .num_dims = 2, .dtype = {2, 32, 1}, .dims = dims}, .deleter = count};
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
  if (!host) {
    FAILS(pathways_array_to_dlpack(a, 0, 0, &t), PATHWAYS_FAILED_PRECONDITION, "not in this process's memory");
    return;
  }
  OK(pathways_array_to_dlpack(a, 0, 1, &t));
  versioned* v = t;
  CHECK(v->major == 1 && v->flags == 1 && v->t.device.type == 1 && v->t.num_dims == 1 && v->t.dims[0] == 12 && v->t.strides[0] == 1);
  CHECK(v->t.dtype.code == 2 && v->t.dtype.bits == 32 && v->t.dtype.lanes == 1 && ((float*)v->t.data)[11] == values[11]);
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

int main(int argc, char** argv) {
  CHECK(argc == 2);
  int host = *argv[1] == 0;
  values = aligned_alloc(64, 64);
  for (int i = 0; i < 12; i++) values[i] = (float)(i * i);
  pathways_session s = open_session(argv[1], 2);
  in(s, host);
  out(s, host);
  if (!host) OK(pathways_drop(s));
  free(values);
  puts("ok");
  return 0;
}
