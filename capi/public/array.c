#include <stdio.h>
#include <stdlib.h>

#include "public.h"

// ---- elements and regions ----

size_t pc_element(PJRT_Buffer_Type type) { return ((size_t)pw_type_bits(type) + 7) / 8; }

bool pc_bytes(const int64_t* dims, size_t n, size_t element, int64_t* bytes) {
  int64_t size = (int64_t)element, whole = (int64_t)element;
  for (size_t i = 0; i < n; i++) {
    if (dims[i] < 0) return false;
    // Empty arrays, too, have dimensions whose product fits.
    if (__builtin_mul_overflow(whole, dims[i] ? dims[i] : 1, &whole)) return false;
    size *= dims[i];
  }
  *bytes = size;
  return true;
}

void pc_dense(const int64_t* dims, size_t n, size_t element, int64_t* strides) {
  int64_t at = (int64_t)element;
  for (size_t i = n; i-- > 0;) {
    strides[i] = at;
    at *= dims[i] ? dims[i] : 1;
  }
}

// pc_is_dense reports whether a region with these strides is one dense row-major block.
bool pc_is_dense(const int64_t* dims, const int64_t* strides, size_t n, size_t element) {
  int64_t at = (int64_t)element;
  for (size_t i = 0; i < n; i++)
    if (dims[i] == 0) return true;
  for (size_t i = n; i-- > 0;) {
    if (dims[i] != 1 && strides[i] != at) return false;
    at *= dims[i];
  }
  return true;
}

static void region(char* dense, char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t bytes,
                size_t element, bool out) {
  if (pc_is_dense(dims, strides, n, element)) {
    memcpy(out ? strided : dense, out ? dense : strided, bytes);
    return;
  }
  bytes /= (size_t)dims[0];
  for (int64_t i = 0; i < dims[0]; i++)
    region(dense + (size_t)i * bytes, strided + i * strides[0], dims + 1, strides + 1, n - 1, bytes, element, out);
}

void pc_region(char* dense, char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t element,
            bool out) {
  size_t bytes = element;
  for (size_t i = 0; i < n; i++) bytes *= (size_t)dims[i];
  if (bytes) region(dense, strided, dims, strides, n, bytes, element, out);
}

// ---- arrays ----

pc_array* pc_array_make(pc_session* s, pw_shape* shape, const int64_t* tiles, size_t n) {
  pc_array* a = shape ? pw_zeros(1, sizeof *a + n * sizeof *a->shards) : NULL;
  if (a == NULL) {
    pw_shape_drop(shape);
    return NULL;
  }
  a->base.session = s;
  a->shape = shape;
  a->tiled = tiles != NULL;
  for (size_t i = 0; i < PATHWAYS_MAX_DIMS; i++) a->tiles[i] = 1;
  if (tiles) memcpy(a->tiles, tiles, shape->num_dims * sizeof *tiles);
  a->num_shards = n;
  atomic_fetch_add_explicit(&s->arrays, 1, memory_order_relaxed);
  return a;
}

static void drop_buffer(const PJRT_Api* api, PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = buffer;
  PJRT_Error* err = api->PJRT_Buffer_Destroy(&a);
  if (err) pw_error_free(err);
}

void pc_array_destroy(pc_object* o) {
  pc_array* a = (pc_array*)o;
  pc_session* s = o->session;
  for (size_t i = 0; i < a->num_shards; i++)
    if (a->shards[i].buffer) drop_buffer(s->api, a->shards[i].buffer);
  pw_shape_drop(a->shape);
  atomic_fetch_sub_explicit(&s->arrays, 1, memory_order_relaxed);
  free(a);
}

pathways_error pc_no_array(size_t shards) { return pc_short("an array", sizeof(pc_array) + shards * sizeof(void*)); }

void pc_array_free(pc_array* a) { pc_array_destroy(&a->base); }

pathways_error pc_shard(const pc_array* a, int32_t shard) {
  return shard >= 0 && (size_t)shard < a->num_shards
             ? 0
             : pc_fail(PATHWAYS_INVALID_ARGUMENT, "there is no shard %d: the array has %zu, from 0", (int)shard,
                       a->num_shards);
}

static size_t parts(const pc_array* a) {
  size_t n = 1;
  for (size_t d = 0; d < a->shape->num_dims; d++) n *= (size_t)a->tiles[d];
  return n;
}

void pc_part(const pc_array* a, size_t shard, int64_t* start) {
  size_t part = shard / (a->num_shards / parts(a));
  for (size_t d = a->shape->num_dims; d-- > 0;) {
    start[d] = (int64_t)(part % (size_t)a->tiles[d]) * a->shape->dims[d];
    part /= (size_t)a->tiles[d];
  }
}

static void whole(const pc_array* a, int64_t* dims) {
  for (size_t d = 0; d < a->shape->num_dims; d++) dims[d] = a->shape->dims[d] * a->tiles[d];
}

// ---- information ----

pathways_error pathways_array_info(pathways_array array, pathways_array_info_t* info) {
  PC_STRUCT(info, "pathways_array_info_t");
  pc_array* a;
  PC_TRY(pc_get(array, PC_ARRAY, &a));
  pathways_array_info_t i = {.type = (pathways_type)a->shape->type,
                             .num_shards = (int32_t)a->num_shards,
                             .num_dims = (int32_t)a->shape->num_dims,
                             .tiled = a->tiled};
  size_t n = a->shape->num_dims, element = pc_element(a->shape->type);
  whole(a, i.dims);
  memcpy(i.shard_dims, a->shape->dims, n * sizeof *i.shard_dims);
  memcpy(i.tiles, a->tiles, n * sizeof *i.tiles);
  pc_bytes(i.dims, n, element, &i.bytes);
  pc_bytes(i.shard_dims, n, element, &i.shard_bytes);
  PC_WRITE(info, i);
  pc_let(a);
  return 0;
}

pathways_error pathways_array_devices(pathways_array array, int32_t* devices, size_t room) {
  pc_array* a;
  if (devices == NULL && room) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_devices: the list is NULL");
  PC_TRY(pc_get(array, PC_ARRAY, &a));
  for (size_t i = 0; i < a->num_shards && i < room; i++) devices[i] = a->shards[i].device->id;
  pc_let(a);
  return 0;
}

static pathways_error ready_event(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Event** event) {
  PW_ARGS(PJRT_Buffer_ReadyEvent_Args, a);
  a.buffer = buffer;
  PJRT_Error* err = api->PJRT_Buffer_ReadyEvent(&a);
  *event = a.event;
  return pc_take(err);
}

pathways_error pathways_array_ready(pathways_array array, pathways_future* future) {
  pc_array* a;
  if (future == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_ready: the future is NULL: expected where to write its handle");
  PC_TRY(pc_get(array, PC_ARRAY, &a));
  const PJRT_Api* api = a->base.session->api;
  pc_future* f = pc_future_make(a->base.session, a->num_shards);
  if (f == NULL) {
    pc_let(a);
    return pc_short("a future", a->num_shards * sizeof(void*));
  }
  pathways_error err = 0;
  size_t i = 0;
  for (; i < a->num_shards && err == 0; i++) {
    PJRT_Event* event;
    if ((err = ready_event(api, a->shards[i].buffer, &event)) == 0) pc_future_on(f, event, NULL, NULL);
    else pc_future_one(f, NULL);
  }
  for (; i < a->num_shards; i++) pc_future_one(f, NULL);
  if (err) pc_future_abandon(f);
  else pc_future_give(f, future);
  pc_future_one(f, NULL);
  pc_let(a);
  return err;
}

// ---- into this process's memory ----

// fetch begins to copy a shard, dense and row-major.
static pathways_error fetch(const pc_array* a, size_t shard, void* to, int64_t size, PJRT_Event** event) {
  int64_t order[PATHWAYS_MAX_DIMS];
  size_t n = a->shape->num_dims;
  PJRT_Buffer_MemoryLayout layout = pw_tiled(pw_descending(order, n), n);
  PW_ARGS(PJRT_Buffer_ToHostBuffer_Args, get);
  get.src = a->shards[shard].buffer;
  get.host_layout = &layout;
  get.dst = to;
  get.dst_size = (size_t)size;
  PJRT_Error* err = a->base.session->api->PJRT_Buffer_ToHostBuffer(&get);
  if (err == NULL) atomic_fetch_add_explicit(&a->base.session->fetches, 1, memory_order_relaxed);
  *event = get.event;
  return pc_take(err);
}

// A piece that is being copied to its place in the whole array.
typedef struct {
  pw_shape* shape;  // counted
  char* to;
  size_t element;
  int64_t strides[PATHWAYS_MAX_DIMS];
  char bytes[];
} piece;

static void arrived(void* arg, bool failed) {
  piece* p = arg;
  if (!failed) pc_region(p->bytes, p->to, p->shape->dims, p->strides, p->shape->num_dims, p->element, true);
  pw_shape_drop(p->shape);
  free(p);
}

// reading is one call of pathways_array_read.
typedef struct {
  pc_array* a;
  char* data;
  bool block;  // each piece is one dense block in the destination
  int64_t bytes;  // of a piece
  int64_t strides[PATHWAYS_MAX_DIMS];  // of the whole array
} reading;

// lay_whole finds the layout of a whole array, and its size in bytes.
static pathways_error lay_whole(reading* r, int64_t* all) {
  const pc_array* a = r->a;
  size_t n = a->shape->num_dims, element = pc_element(a->shape->type);
  if (!a->tiled)
    return pc_fail(PATHWAYS_FAILED_PRECONDITION,
                   "array_read: it is not known how the %zu shards of this array lie; say so in "
                   "pathways_compile_options.outputs, or read them one by one",
                   a->num_shards);
  int64_t dims[PATHWAYS_MAX_DIMS];
  whole(a, dims);
  pc_bytes(dims, n, element, all);
  pc_dense(dims, n, element, r->strides);
  r->block = pc_is_dense(a->shape->dims, r->strides, n, element);
  return 0;
}

// read_piece begins to copy a shard to its place. It accounts for one event of the future.
static pathways_error read_piece(const reading* r, size_t shard, char* to, pc_future* f) {
  piece* p = NULL;
  PJRT_Event* event;
  pathways_error err = 0;
  if (!r->block) {
    p = pw_alloc(sizeof *p + (size_t)r->bytes);
    if (p == NULL) {
      err = pc_short("a shard on its way to its place", (size_t)r->bytes);
    } else {
      p->shape = pw_shape_hold(r->a->shape, 1);
      p->to = to;
      p->element = pc_element(r->a->shape->type);
      memcpy(p->strides, r->strides, sizeof r->strides);
    }
  }
  if (err == 0) err = fetch(r->a, shard, p ? p->bytes : to, r->bytes, &event);
  if (err == 0) {
    pc_future_on(f, event, p ? arrived : NULL, p);
    return 0;
  }
  if (p) arrived(p, true);
  pc_future_one(f, NULL);
  return err;
}

// read_pieces reads one shard, or one of each part, and writes the future's handle.
static pathways_error read_pieces(const reading* r, int32_t shard, pathways_future* future) {
  const pc_array* a = r->a;
  bool all = shard == PATHWAYS_WHOLE;
  size_t first = all ? 0 : (size_t)shard, count = all ? parts(a) : 1, step = all ? a->num_shards / count : 1;
  pc_future* f = pc_future_make(a->base.session, count);
  if (f == NULL) return pc_short("a future", count * sizeof(void*));
  pathways_error err = 0;
  for (size_t i = 0; i < count; i++) {
    if (err) {
      pc_future_one(f, NULL);
      continue;
    }
    int64_t start[PATHWAYS_MAX_DIMS];
    char* to = r->data;
    if (all) pc_part(a, i * step, start);
    for (size_t d = 0; all && d < a->shape->num_dims; d++) to += start[d] * r->strides[d];
    err = read_piece(r, first + i * step, to, f);
  }
  pc_future_one(f, NULL);
  if (err) {
    // Copies that have begun write into the caller's memory, so they are waited for.
    uint64_t handle;
    pc_future_give(f, &handle);
    pathways_error ignored = pathways_future_wait(handle, -1);
    if (ignored) pathways_drop(ignored);
    pc_discard(handle);
  } else {
    pc_future_give(f, future);
  }
  return err;
}

pathways_error pathways_array_read(pathways_array array, int32_t shard, void* data, size_t size,
                                   pathways_future* future) {
  pc_array* a;
  if (future == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_read: the future is NULL: expected where to write its handle");
  PC_TRY(pc_get(array, PC_ARRAY, &a));
  char nothing[8];
  reading r = {.a = a, .data = data ? data : nothing, .block = true};
  pc_bytes(a->shape->dims, a->shape->num_dims, pc_element(a->shape->type), &r.bytes);
  int64_t all = r.bytes;
  pathways_error err = shard == PATHWAYS_WHOLE ? lay_whole(&r, &all) : pc_shard(a, shard);
  if (err == 0 && (size != (size_t)all || (data == NULL && size)))
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_read: this takes %lld bytes, and there is room for %zu%s",
                  (long long)all, size, data ? "" : " at NULL");
  if (err == 0) err = read_pieces(&r, shard, future);
  pc_let(a);
  return err;
}

// ---- to other devices ----

pathways_error pathways_array_copy(pathways_array array, const int32_t* ids, size_t num_devices, pathways_array* copy) {
  pc_array* a;
  if (ids == NULL || copy == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_copy: the devices, or where to write the handle, is NULL");
  PC_TRY(pc_get(array, PC_ARRAY, &a));
  pc_session* s = a->base.session;
  size_t n = a->num_shards;
  pathways_error err = 0;
  pc_device** devices = pw_zeros(n, sizeof *devices);
  if (devices == NULL) err = pc_no_array(n);
  else if (num_devices != n)
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_copy: the array has %zu shards, and %zu devices are named", n,
                  num_devices);
  if (err == 0) err = pc_devices(s, ids, n, devices);
  if (err == 0) {
    atomic_fetch_add_explicit(&a->shape->refs, 1, memory_order_relaxed);
    pc_array* b = pc_array_make(s, a->shape, a->tiled ? a->tiles : NULL, n);
    if (b == NULL) err = pc_no_array(n);
    for (size_t i = 0; i < n && err == 0; i++) {
      PW_ARGS(PJRT_Buffer_CopyToMemory_Args, to);
      to.buffer = a->shards[i].buffer;
      to.dst_memory = devices[i]->memory;
      if ((err = pc_take(s->api->PJRT_Buffer_CopyToMemory(&to)))) break;
      b->shards[i].buffer = to.dst_buffer;
      b->shards[i].device = devices[i];
    }
    if (err == 0) err = pc_new(&b->base, PC_ARRAY, s, copy);
    else if (b) pc_array_free(b);
  }
  free(devices);
  pc_let(a);
  return err;
}

// ---- views ----

typedef struct {
  pc_object base;
  pc_array* array;  // with a reference
  PJRT_Buffer* buffer;
} view;

void pc_view_destroy(pc_object* o) {
  view* v = (view*)o;
  PW_ARGS(PJRT_Buffer_DecreaseExternalReferenceCount_Args, a);
  a.buffer = v->buffer;
  PJRT_Error* err = o->session->api->PJRT_Buffer_DecreaseExternalReferenceCount(&a);
  if (err) pw_error_free(err);
  pc_let(v->array);
  free(v);
}

// look_at waits for a shard and returns its address, with one more external reference.
static pathways_error look_at(const PJRT_Api* api, PJRT_Buffer* buffer, size_t num_dims, const void** data) {
  PW_ARGS(PJRT_Buffer_IsOnCpu_Args, on);
  on.buffer = buffer;
  PC_TRY(pc_take(api->PJRT_Buffer_IsOnCpu(&on)));
  if (!on.is_on_cpu)
    return pc_fail(PATHWAYS_FAILED_PRECONDITION,
                   "array_view: the array's bytes cannot be looked at in this process's memory; copy them with "
                   "pathways_array_read");
  PJRT_Event* event;
  PC_TRY(ready_event(api, buffer, &event));
  PW_ARGS(PJRT_Event_Await_Args, await);
  await.event = event;
  pathways_error err = pc_take(api->PJRT_Event_Await(&await));
  pc_event_drop(api, event);
  if (err) return err;
  PW_ARGS(PJRT_Buffer_GetMemoryLayout_Args, layout);
  layout.buffer = buffer;
  PC_TRY(pc_take(api->PJRT_Buffer_GetMemoryLayout(&layout)));
  if (!pw_row_by_row(&layout.layout, num_dims))
    return pc_fail(PATHWAYS_FAILED_PRECONDITION,
                   "array_view: the array's bytes are not row by row; copy them with pathways_array_read");
  PW_ARGS(PJRT_Buffer_IncreaseExternalReferenceCount_Args, keep);
  PW_ARGS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args, at);
  keep.buffer = at.buffer = buffer;
  PC_TRY(pc_take(api->PJRT_Buffer_IncreaseExternalReferenceCount(&keep)));
  if ((err = pc_take(api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&at)))) {
    PW_ARGS(PJRT_Buffer_DecreaseExternalReferenceCount_Args, let);
    let.buffer = buffer;
    PJRT_Error* late = api->PJRT_Buffer_DecreaseExternalReferenceCount(&let);
    if (late) pw_error_free(late);
  }
  *data = at.device_memory_ptr;
  return err;
}

pathways_error pathways_array_view(pathways_array array, int32_t shard, pathways_view* handle, const void** data) {
  pc_array* a;
  if (handle == NULL || data == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_view: the view, or where to write the address, is NULL");
  PC_TRY(pc_get(array, PC_ARRAY, &a));
  pathways_error err = pc_shard(a, shard);
  if (err == 0 && pw_type_bits(a->shape->type) < 8 && a->shape->type != PJRT_Buffer_Type_PRED)
    err = pc_fail(PATHWAYS_FAILED_PRECONDITION,
                  "array_view: several of the array's elements share a byte; copy them with pathways_array_read");
  const void* at;
  view* v = NULL;
  if (err == 0 && (v = pw_zeros(1, sizeof *v)) == NULL) err = pc_short("a view", sizeof *v);
  if (err == 0) err = look_at(a->base.session->api, a->shards[shard].buffer, a->shape->num_dims, &at);
  if (err) {
    free(v);
    pc_let(a);
    return err;
  }
  v->array = a;
  v->buffer = a->shards[shard].buffer;
  if ((err = pc_new(&v->base, PC_VIEW, a->base.session, handle))) return err;
  *data = at;
  return 0;
}
