// Buffers on a cluster: how bytes leave this process, come to it, and move between devices. The slot that begins a
// transfer enters Go once and returns; the rest happens in callbacks of Go, and a future says when it has ended.
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"

// where finds the device and memory of a call that names either of them.
static PJRT_Error* where(PJRT_Device* device, PJRT_Memory* memory, PJRT_Device** d, pr_memory** m) {
  *d = device;
  *m = memory ? (pr_memory*)memory : (device ? pr_memory_kind(device, "", 0) : NULL);
  if (*m == NULL)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "an array needs a device or a memory to go to, and this call names none");
  *d = (*m)->device;
  return NULL;
}

// new_shard is the one shard of a new object, before the cluster knows the object.
static pr_buffer* new_shard(PJRT_Device* d, pr_memory* m, pw_shape* shape) {
  pr_buffer* b;
  if (!pr_shards_new(&b, 1)) return NULL;
  b->device = d;
  b->memory = m;
  b->shape = pw_shape_hold(shape, 1);
  return b;
}

static void drop_shard(pr_buffer* b) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = pr_buffer_handle(b);
  pr_PJRT_Buffer_Destroy(&a);
}

// register_shard returns the handle of a shard that the cluster now knows. It takes the future.
static PJRT_Buffer* register_shard(pr_buffer* b, uint64_t number, pr_future* made) {
  int64_t bytes = pw_shape_bytes(b->shape);
  pr_object_becomes(b->object, b->device->client->session, number, made, bytes);
  pr_buffer_count(b, bytes);
  return pr_buffer_handle(b);
}

// ---- from the host ----

void pr_put_fill(pr_put* p, char* dst) {
  const char* src = p->copy ? p->copy : p->data;
  int64_t size = pr_host_bytes(p->shape);
  if (size == 0) return;
  PR_COUNT(copied, size);
  if (p->strides && !p->copy)
    pr_pack(dst, src, p->shape->dims, p->strides, p->shape->num_dims, pr_element_size(p->shape->type));
  else
    memcpy(dst, src, (size_t)size);
}

void pr_put_keep(pr_put* p) {
  char* copy = p->room;
  p->room = NULL;
  pr_put_fill(p, copy);
  p->copy = copy;
}

pr_future* pr_put_free(pr_put* p) {
  pr_future* done = p->done;
  pw_shape_drop(p->shape);
  free(p->strides);
  free(p->copy);
  free(p->room);
  free(p);
  PR_COUNT(puts, -1);
  return done;
}

// row_major returns an error for layouts that a cluster's arrays cannot have.
static PJRT_Error* row_major(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t n, size_t element) {
  int64_t* strides = pw_zeros(n, sizeof *strides);
  if (strides == NULL) return pw_short("the strides of an array", n * sizeof *strides);
  PJRT_Error* err = pr_layout_strides(layout, dims, n, element, strides);
  if (err == NULL && !pr_dense(dims, strides, n, element))
    err = pw_error(PJRT_Error_Code_UNIMPLEMENTED, "an array of another layout than row-major on a device of a cluster");
  free(strides);
  return err;
}

// put_new allocates a transfer from the host; NULL if memory is short.
static pr_put* put_new(const PJRT_Client_BufferFromHostBuffer_Args* args, bool during, bool strided) {
  pr_put* p = pw_zeros(1, sizeof *p);
  if (p == NULL) return NULL;
  size_t n = args->num_dims;
  PR_COUNT(puts, 1);
  p->data = args->data;
  if ((p->shape = pw_shape_new(args->type, args->dims, n)) &&
      (p->done = during ? pr_future_ready() : pr_future_new(2)) &&
      (!during || (p->room = pw_alloc((size_t)pr_host_bytes(p->shape)))) &&
      (!strided || (p->strides = pw_copy(args->byte_strides, n * sizeof *p->strides))))
    return p;
  pr_future* done = pr_put_free(p);
  if (done) pr_future_drop(done);
  if (done && !during) pr_future_drop(done);
  return NULL;
}

PJRT_Error* pr_PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_Device* d;
  pr_memory* m;
  PJRT_Error* err = where(args->device, PW_COVERS(args, memory) ? args->memory : NULL, &d, &m);
  if (err) return err;
  size_t n = args->num_dims, element = pr_element_size(args->type);
  if (element == 0)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a host array of type %d: expected an array of numbers",
                    (int)args->type);
  if (args->byte_strides && args->num_byte_strides != n)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a host array of %zu dimensions comes with %zu strides", n,
                    args->num_byte_strides);
  if (PW_COVERS(args, device_layout) && args->device_layout &&
      (err = row_major(args->device_layout, args->dims, n, element)))
    return err;
  bool during = args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  pr_put* p = put_new(args, during, args->byte_strides && !pr_dense(args->dims, args->byte_strides, n, element));
  if (p == NULL) return pw_short("a transfer from the host", sizeof *p);
  pr_future *done = p->done, *made = pr_future_new(2);  // one for the object and one for Go
  pr_buffer* b = made ? new_shard(d, m, p->shape) : NULL;
  if (b == NULL) {
    pr_put_free(p);
    for (int refs = during ? 1 : 2; refs > 0; refs--) pr_future_drop(done);
    for (int refs = made ? 2 : 0; refs > 0; refs--) pr_future_drop(made);
    return pr_no_shards(1);
  }
  pr_tell_rows_gone();
  if (during) pr_future_hold(done);  // one for the caller and one for the data
  int64_t bytes = pw_shape_bytes(b->shape);
  pr_object* joined = NULL;
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  PR_COUNT(host_puts, 1);
  int code = prGoPut(args->client->session, (uint32_t)d->description.id, m->kind, p, b->object, made, bytes,
                     during, &joined, &message);
  if (code || joined) pr_future_drop(made);  // Go's: the operation is not this object's
  if (code) {  // Go has dropped p, but not the other future
    pr_future_drop(done);
    drop_shard(b);
    return pw_error_take((PJRT_Error_Code)code, message);
  }
  if (joined) {
    pr_future_drop(b->object->made);
    pr_objects_unused(&b->object, 1);
    b->object = joined;
  }
  pr_buffer_count(b, bytes);
  args->done_with_host_buffer = (PJRT_Event*)done;
  args->buffer = pr_buffer_handle(b);
  return NULL;
}

// ---- to the host ----

void pr_fetch_end(pr_fetch* f, bool arrived) {
  if (arrived) {
    PR_COUNT(copied, pr_host_bytes(f->shape));
    pr_unpack(f->dst, f->bytes, f->shape->dims, f->strides, f->shape->num_dims, pr_element_size(f->shape->type));
  }
  pw_shape_drop(f->shape);
  free(f->strides);
  free(f->bytes);
  free(f);
  PR_COUNT(fetches, -1);
}

// host_strides returns the strides in which a caller wants a shard's bytes, NULL if dense, and how many bytes these
// strides span.
static PJRT_Error* host_strides(const pw_shape* shape, const PJRT_Buffer_MemoryLayout* layout, int64_t** out,
                                size_t* span) {
  size_t n = shape->num_dims, element = pr_element_size(shape->type);
  *span = (size_t)pr_host_bytes(shape);
  *out = NULL;
  if (layout == NULL) return NULL;
  int64_t* strides = pw_zeros(n, sizeof *strides);
  if (strides == NULL) return pw_short("the strides of an array", n * sizeof *strides);
  PJRT_Error* err = pr_layout_strides(layout, shape->dims, n, element, strides);
  if (err || pr_dense(shape->dims, strides, n, element)) {
    free(strides);
    return err;
  }
  *out = strides;
  *span = element;
  for (size_t i = 0; i < n; i++) *span += (size_t)(shape->dims[i] - 1) * (size_t)llabs(strides[i]);
  return NULL;
}

// fetch copies a shard's bytes to args->dst. It takes the strides.
static PJRT_Error* fetch(const pr_buffer* b, PJRT_Buffer_ToHostBuffer_Args* args, int64_t* strides) {
  size_t need = (size_t)pr_host_bytes(b->shape);
  pr_future* arrived = pr_future_new(2);
  pr_fetch* f = NULL;
  char* bytes = NULL;
  if (arrived == NULL || (strides && !((f = pw_alloc(sizeof *f)) && (bytes = pw_alloc(need))))) {
    for (int refs = arrived ? 2 : 0; refs > 0; refs--) pr_future_drop(arrived);
    free(f);
    free(strides);
    return pw_short("a transfer to the host", sizeof *f + need);
  }
  if (f) {
    *f = (pr_fetch){.bytes = bytes, .dst = args->dst, .shape = pw_shape_hold(b->shape, 1), .strides = strides};
    PR_COUNT(fetches, 1);
  }
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  PR_COUNT(host_fetches, 1);
  int code = prGoFetch(b->object->base.name.session, b->object->base.name.number, (uint32_t)b->device->description.id,
                       f ? f->bytes : args->dst, need, f, (uintptr_t)arrived, &message);
  if (code) {
    if (f) pr_fetch_end(f, false);
    pr_future_drop(arrived);
    pr_future_drop(arrived);
    return pw_error_take((PJRT_Error_Code)code, message);
  }
  args->event = (PJRT_Event*)arrived;
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  if (pw_forked) return pw_forked_error();
  LIVE(b, args->src, "PJRT_Buffer_ToHostBuffer");
  pp_reads(b->symbol);
  PJRT_Error* err = pr_unmade(b);
  if (err) return err;
  size_t span;
  int64_t* strides;
  if ((err = host_strides(b->shape, args->host_layout, &strides, &span))) return err;
  if (args->dst == NULL) {
    args->dst_size = span;
    free(strides);
    return NULL;
  }
  if (args->dst_size < span) {
    free(strides);
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "PJRT_Buffer_ToHostBuffer: the array takes %zu bytes, and the destination has %zu", span,
                    args->dst_size);
  }
  return fetch(b, args, strides);
}

// ---- from device to device ----

static PJRT_Error* move(pr_buffer* b, PJRT_Device* d, pr_memory* m, PJRT_Buffer** out) {
  if (pw_forked) return pw_forked_error();
  if (pp_capturing && b->symbol) return pp_copy(&pr_frontend, pr_buffer_handle(b), &m->base.base, out);
  PJRT_Error* none = pr_unmade(b);
  if (none) return none;
  if (d->client != b->device->client)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "the array belongs to another client than the device it is to go to; copy it through the host");
  if (b->minor_to_major)  // JAX assumes that the copy has the array's layout
    return pw_error(
        PJRT_Error_Code_UNIMPLEMENTED,
        "an array that is not row-major cannot be copied to another device of a cluster as it is; first convert it to "
        "the default layout where it is, with jax.device_put(x, jax.experimental.layout.Format("
        "jax.experimental.layout.Layout(tuple(range(x.ndim))), x.sharding)), or use pathways.reshard");
  pr_future* made = pr_future_new(2);
  pr_buffer* copy = made ? new_shard(d, m, b->shape) : NULL;
  if (copy == NULL) {
    for (int refs = made ? 2 : 0; refs > 0; refs--) pr_future_drop(made);
    return pr_no_shards(1);
  }
  uint64_t number = 0;
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  int code = prGoCopy(b->object->base.name.session, b->object->base.name.number, (uint32_t)b->device->description.id,
                      (uint32_t)d->description.id, b->shape, m->kind, (uintptr_t)made, &number, &message);
  if (code) {
    pr_future_drop(made);
    pr_future_drop(made);
    drop_shard(copy);
    return pw_error_take((PJRT_Error_Code)code, message);
  }
  *out = register_shard(copy, number, made);
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_CopyToDevice");
  return move(b, args->dst_device, pr_memory_kind(args->dst_device, "", 0), &args->dst_buffer);
}

PJRT_Error* pr_PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_CopyToMemory");
  pr_memory* m = (pr_memory*)args->dst_memory;
  return move(b, m->device, m, &args->dst_buffer);
}

// ---- what only reads ----

PJRT_Error* pr_PJRT_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args* args) {
  ANY(b, args->buffer, "PJRT_Buffer_UnpaddedDimensions");
  args->unpadded_dims = b->shape->dims;
  args->num_dims = b->shape->num_dims;
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args* args) {
  ANY(b, args->buffer, "PJRT_Buffer_DynamicDimensionIndices");
  args->dynamic_dim_indices = NULL;
  args->num_dynamic_dims = 0;
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args* args) {
  ANY(b, args->buffer, "PJRT_Buffer_GetMemoryLayout");
  static const int64_t descending[] = {31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                                       15, 14, 13, 12, 11, 10, 9,  8,  7,  6,  5,  4,  3,  2,  1,  0};
  size_t n = b->shape->num_dims, most = sizeof descending / sizeof *descending;
  if (n > most)
    return pw_error(PJRT_Error_Code_UNIMPLEMENTED, "PJRT_Buffer_GetMemoryLayout of an array of %zu dimensions", n);
  args->layout = pw_tiled(b->minor_to_major ? b->minor_to_major : descending + most - n, n);
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_OnDeviceSizeInBytes");
  args->on_device_size_in_bytes = (size_t)pw_shape_bytes(b->shape);
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args* args) {
  pr_buffer* b = pr_buffer_of(args->buffer);
  args->is_deleted = b == NULL || atomic_load_explicit(&b->gone, memory_order_acquire);
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_ReadyEvent");
  pp_reads(b->symbol);
  if (atomic_load_explicit(&b->object->open, memory_order_relaxed)) pr_hasten();
  // Bytes come directly from their worker, so they may arrive before the controller's report that the array was made.
  pr_future* here = pr_view_arrived(b);
  args->event = (PJRT_Event*)(here ? here : pr_future_hold(b->object->made));
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_UnsafePointer");
  pp_reads(b->symbol);
  return pw_error(
      PJRT_Error_Code_UNIMPLEMENTED,
      "PJRT_Buffer_UnsafePointer: the array is in the memory of another process; read it with numpy.asarray()");
}
