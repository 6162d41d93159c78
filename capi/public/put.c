// Arrays made from this process's memory.
#include <stdio.h>
#include <stdlib.h>

#include "public.h"

static bool is_type(int type) {
  return type >= PATHWAYS_BOOL && type <= PATHWAYS_F4E2M1FN && type != PJRT_Buffer_Type_TOKEN;
}

// lent counts the shards that may still read the caller's memory.
typedef struct {
  _Atomic size_t left;
  const PJRT_Api* api;
  void (*released)(void* arg);
  void* arg;
  bool direct;  // may be called on any thread
} lent;

static void give_back(lent* l) {
  if (atomic_fetch_sub_explicit(&l->left, 1, memory_order_acq_rel) != 1) return;
  if (l->released && l->direct) l->released(l->arg);
  else if (l->released) pc_later(l->released, l->arg);
  free(l);
}

static void on_unread(PJRT_Error* error, void* arg) {
  if (error) pw_error_free(error);  // the array itself fails with the same error
  give_back(arg);
}

// address_of returns where a shard's bytes are in this process, or NULL.
static void* address_of(const PJRT_Api* api, PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Buffer_IsOnCpu_Args, on);
  PW_ARGS(PJRT_Buffer_UnsafePointer_Args, at);
  on.buffer = at.buffer = buffer;
  PJRT_Error* err = api->PJRT_Buffer_UnsafePointer(&at);
  if (err == NULL) err = api->PJRT_Buffer_IsOnCpu(&on);
  if (err) pw_error_free(err);
  return on.is_on_cpu ? (void*)at.buffer_pointer : NULL;
}

static void await_event(const PJRT_Api* api, PJRT_Event* event) {
  PW_ARGS(PJRT_Event_Await_Args, await);
  await.event = event;
  PJRT_Error* err = api->PJRT_Event_Await(&await);
  if (err) pw_error_free(err);
}

// take_back undoes a put that failed halfway: when it returns, the devices no longer read the caller's data.
static void take_back(pc_array* a, PJRT_Event** unread) {
  const PJRT_Api* api = a->base.session->api;
  size_t n = a->num_shards;
  pc_array_free(a);
  for (size_t i = 0; i < n; i++) {
    if (unread[i] == NULL) continue;
    await_event(api, unread[i]);
    pc_event_drop(api, unread[i]);
  }
}

pathways_error pc_lay(const char* call, const pathways_host_options* o, size_t num_shards, int64_t* tiles,
                      int64_t* shard) {
  if (!is_type((int)o->type))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "%s: there is no type %d of elements", call, (int)o->type);
  if (o->num_dims > PATHWAYS_MAX_DIMS || (o->dims == NULL && o->num_dims))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "%s: %zu dimensions: expected at most %d, with their sizes", call,
                   o->num_dims, PATHWAYS_MAX_DIMS);
  int64_t bytes;
  if (!pc_bytes(o->dims, o->num_dims, pc_element((PJRT_Buffer_Type)o->type), &bytes))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "%s: a dimension is negative, or the array has more bytes than can be counted", call);
  if (o->tiles.tiles && o->tiles.num_dims != o->num_dims)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "%s: the array has %zu dimensions, and its tiles %zu", call, o->num_dims,
                   o->tiles.num_dims);
  int64_t all = 1;
  for (size_t d = 0; d < o->num_dims; d++) {
    tiles[d] = o->tiles.tiles ? o->tiles.tiles[d] : 1;
    if (tiles[d] < 1 || tiles[d] > (int64_t)num_shards || o->dims[d] % tiles[d])
      return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                     "%s: dimension %zu, of %lld, is to be cut into %lld equal parts on %zu devices", call, d,
                     (long long)o->dims[d], (long long)tiles[d], num_shards);
    shard[d] = o->dims[d] / tiles[d];
    all *= tiles[d];
    if (all > (int64_t)num_shards) break;
  }
  if (all > (int64_t)num_shards || num_shards % (size_t)all)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "%s: the tiles cut the array into %lld parts or more, which %zu devices do not hold evenly", call,
                   (long long)all, num_shards);
  return 0;
}

// pack returns a dense copy of a region with strides that no device accepts: repeated elements, or descending order.
static pathways_error pack(const char* data, const int64_t* dims, const int64_t* strides, size_t n, size_t element,
                           char** out) {
  *out = NULL;
  bool odd = false;
  for (size_t d = 0; d < n; d++) odd |= dims[d] > 1 && strides[d] <= 0;
  int64_t bytes;
  if (!odd || !pc_bytes(dims, n, element, &bytes)) return 0;
  *out = pw_alloc((size_t)bytes);
  if (*out == NULL) return pc_short("a copy of a region", (size_t)bytes);
  pc_region(*out, (char*)data, dims, strides, n, element, false);
  return 0;
}

// putting is one call of pc_put: its arguments, and what its steps have found.
typedef struct {
  pc_session* s;
  pathways_host_options o;
  size_t n;  // shards
  pc_device** devices;
  int64_t tiles[PATHWAYS_MAX_DIMS], shard[PATHWAYS_MAX_DIMS], strides[PATHWAYS_MAX_DIMS];
  bool block;  // each shard is one dense row-major block
  pc_array* a;
  PJRT_Event** unread;  // one for each shard: its device has read the data
} putting;

// check validates the arguments of a put, and finds the device and region of each shard.
static pathways_error check(putting* p) {
  const pathways_host_options* o = &p->o;
  if (o->mode < PATHWAYS_COPY || o->mode > PATHWAYS_BORROW_OR_FAIL || (o->mode == PATHWAYS_COPY && o->released))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_host: mode %d, with%s a function to release the data",
                   (int)o->mode, o->released ? "" : "out");
  if (o->devices == NULL && o->num_devices > 1)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_host: %zu devices, and their list is NULL", o->num_devices);
  if (o->devices && o->num_devices == 0)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_host: the list of devices is empty");
  p->n = o->num_devices ? o->num_devices : 1;
  if (p->n > p->s->num_devices) return pc_devices(p->s, NULL, p->n, NULL);
  p->devices = pw_zeros(p->n, sizeof *p->devices);
  p->unread = pw_zeros(p->n, sizeof *p->unread);
  if (p->devices == NULL || p->unread == NULL) return pc_no_array(p->n);
  PC_TRY(pc_devices(p->s, o->devices, p->n, p->devices));
  PC_TRY(pc_lay("array_from_host", o, p->n, p->tiles, p->shard));
  int64_t bytes;
  if (o->data == NULL && pc_bytes(p->shard, o->num_dims, 1, &bytes) && bytes)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_host: the data is NULL");
  size_t element = pc_element((PJRT_Buffer_Type)o->type);
  if (o->byte_strides) memcpy(p->strides, o->byte_strides, o->num_dims * sizeof *p->strides);
  else pc_dense(o->dims, o->num_dims, element, p->strides);
  p->block = pc_is_dense(p->shard, p->strides, o->num_dims, element);
  p->a = pc_array_make(p->s, pw_shape_new((PJRT_Buffer_Type)o->type, p->shard, o->num_dims), p->tiles, p->n);
  return p->a ? 0 : pc_no_array(p->n);
}

// borrowed returns an error for a shard that its device has copied although the caller does not allow that.
static pathways_error borrowed(const putting* p, size_t i, PJRT_Buffer* buffer, const char* data) {
  if (p->o.mode != PATHWAYS_BORROW_OR_FAIL || address_of(p->s->api, buffer) == data) return 0;
  return pc_fail(PATHWAYS_FAILED_PRECONDITION,
                 "array_from_host: shard %zu cannot be device %d's memory without a copy: %s", i,
                 (int)p->devices[i]->id,
                 !p->s->on_host         ? "the device's memory is not this process's; borrow with PATHWAYS_BORROW"
                 : !p->block            ? "its bytes are not one dense block"
                 : (uintptr_t)data % 64 ? "its bytes do not begin at a multiple of 64"
                                        : "the plugin does not take it");
}

// put_shard copies or lends a shard to its device.
static pathways_error put_shard(putting* p, size_t i) {
  static const char empty[64];
  const pathways_host_options* o = &p->o;
  int64_t start[PATHWAYS_MAX_DIMS];
  pc_part(p->a, i, start);
  const char* data = o->data ? o->data : empty;
  for (size_t d = 0; o->data && d < o->num_dims; d++) data += p->shard[d] ? start[d] * p->strides[d] : 0;
  char* dense = NULL;
  if (!p->block) PC_TRY(pack(data, p->shard, p->strides, o->num_dims, pc_element((PJRT_Buffer_Type)o->type), &dense));
  bool rows = p->block || dense;
  PW_ARGS(PJRT_Client_BufferFromHostBuffer_Args, put);
  put.client = p->s->client;
  put.data = dense ? dense : data;
  put.type = (PJRT_Buffer_Type)o->type;
  put.dims = p->shard;
  put.num_dims = o->num_dims;
  put.byte_strides = rows ? NULL : p->strides;
  put.num_byte_strides = rows ? 0 : o->num_dims;
  put.host_buffer_semantics = o->mode == PATHWAYS_COPY || dense ? PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
                                                                : PJRT_HostBufferSemantics_kImmutableZeroCopy;
  put.device = p->devices[i]->device;
  pathways_error err = pc_take(p->s->api->PJRT_Client_BufferFromHostBuffer(&put));
  free(dense);
  if (err) return err;
  p->a->shards[i].buffer = put.buffer;
  p->a->shards[i].device = p->devices[i];
  p->unread[i] = put.done_with_host_buffer;
  return borrowed(p, i, put.buffer, data);
}

// watch has `released` called when the devices no longer read the data. If no handle can be made, which err says, it is
// called at once, and the call returns the error.
static void watch(putting* p, lent* l, bool failed) {
  const PJRT_Api* api = p->s->api;
  if (l && failed) l->released = NULL;
  for (size_t i = 0; i < p->n; i++) {
    if (l) {
      PW_ARGS(PJRT_Event_OnReady_Args, on);
      on.event = p->unread[i];
      on.callback = on_unread;
      on.user_arg = l;
      if (failed) await_event(api, p->unread[i]);
      PJRT_Error* late = api->PJRT_Event_OnReady(&on);
      if (late) on_unread(late, l);
    }
    pc_event_drop(api, p->unread[i]);
  }
}

pathways_error pc_put(pc_session* s, const pathways_host_options* options, bool direct, pathways_array* array) {
  if (array == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_from_host: the array is NULL: expected where to write its handle");
  putting p = {.s = s, .o = *options};
  lent* l = NULL;
  pathways_error err = check(&p);
  if (err == 0 && p.o.mode != PATHWAYS_COPY) {
    l = pw_alloc(sizeof *l);
    if (l) *l = (lent){.left = p.n, .api = s->api, .released = p.o.released, .arg = p.o.released_arg, .direct = direct};
    else err = pc_no_array(p.n);
  }
  for (size_t i = 0; i < p.n && err == 0; i++) err = put_shard(&p, i);
  if (err) {
    if (p.a) take_back(p.a, p.unread);
    free(l);
  } else {
    atomic_fetch_add_explicit(&s->puts, (int64_t)p.n, memory_order_relaxed);
    err = pc_new(&p.a->base, PC_ARRAY, s, array);
    watch(&p, l, err != 0);
  }
  free(p.unread);
  free(p.devices);
  return err;
}

pathways_error pathways_array_from_host(pathways_session session, const pathways_host_options* options,
                                        pathways_array* array) {
  PC_READ(pathways_host_options, o, options, "pathways_host_options");
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  pathways_error err = pc_put(s, &o, false, array);
  pc_let(s);
  return err;
}
