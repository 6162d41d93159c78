// Buffers: each is the plugin's, with its object in the core where memory is counted. What a buffer needs is allocated
// before core or plugin are called, so that what has been made can always be handed out, or undone.
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "room.h"

static void fill(pw_buffer* b, PJRT_Buffer* under, PJRT_Device* device, PJRT_Memory* memory, pw_shape* shape,
                 pw_array* array) {
  b->under = under;
  b->device = device;
  b->memory = memory;
  b->shape = shape;
  b->array = array;
  atomic_store_explicit(&b->comes, true, memory_order_relaxed);
  pw_buffer_count(b, pw_shape_bytes(shape));
}

// place asks the core for an object of this many bytes on one device; 0 if it counts none.
static PJRT_Error* place(PJRT_Client* c, PJRT_Device* d, int64_t bytes, uint64_t* object) {
  if (pw_forked) return pw_forked_error();
  *object = 0;
  if (pw_passes(c->pass)) return NULL;
  char* message = NULL;
  pw_name freed[PW_FREED];
  size_t n = pw_freed(freed, PW_FREED, false);
  pw_room room = {0};
  int code = 0;
  for (bool again = true; again; n = 0) {
    bool can_wait = false;
    pw_room_ask(&room);
    PW_COUNT(go_entries, 1);
    code = pwGoPlace(c->session, d->index, bytes, freed, n, object, &can_wait, &message);
    if (n) pw_tell_end(true);
    again = can_wait && pw_room_wait(&room, c->pass);
    if (again) free(message);
  }
  return pw_room_end(&room, code == 0 ? NULL : pw_error_take((PJRT_Error_Code)code, message));
}

// parts are the allocations of a new buffer, made before the core or the plugin is called.
typedef struct {
  pw_shape* shape;
  pw_buffer* buffer;
  pw_array* array;
} parts;

static PJRT_Error* take_parts(PJRT_Buffer_Type type, const int64_t* dims, size_t num_dims, parts* p) {
  size_t bytes = sizeof *p->shape + num_dims * sizeof *dims + sizeof *p->buffer + sizeof *p->array;
  if ((p->shape = pw_shape_new(type, dims, num_dims)) == NULL) return pw_short("a buffer", bytes);
  if (!pw_buffers_new(&p->buffer, 1)) goto shape;
  if (pw_arrays_new(&p->array, 1)) return NULL;
  pw_buffers_unused(&p->buffer, 1);
shape:
  pw_shape_drop(p->shape);
  return pw_short("a buffer", bytes);
}

static void drop_parts(parts* p) {
  pw_arrays_unused(&p->array, 1);
  pw_buffers_unused(&p->buffer, 1);
  pw_shape_drop(p->shape);
}

// new_buffer makes the parts a buffer of ours over one of the plugin's, with its object in the core.
static PJRT_Buffer* new_buffer(const parts* p, PJRT_Client* c, PJRT_Buffer* under, PJRT_Device* device,
                               PJRT_Memory* memory, uint64_t object) {
  pw_array_is(p->array, c->session, object, 1);
  fill(p->buffer, under, device, memory, p->shape, p->array);
  return pw_buffer_handle(p->buffer);
}

PJRT_Error* pw_adopt(PJRT_Client* c, PJRT_Buffer* under, PJRT_Device* device, PJRT_Memory* memory,
                     PJRT_Buffer** handle) {
  PJRT_Error* err;
  if (device == NULL || device->index < 0) {
    pw_destroy_buffer(under);
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a buffer can be made on an addressable device only");
  }
  PW_ARGS(PJRT_Buffer_ElementType_Args, type);
  PW_ARGS(PJRT_Buffer_Dimensions_Args, dims);
  type.buffer = dims.buffer = under;
  if ((err = pw_under->PJRT_Buffer_ElementType(&type)) || (err = pw_under->PJRT_Buffer_Dimensions(&dims))) {
    pw_destroy_buffer(under);
    return err;
  }
  parts p;
  if ((err = take_parts(type.type, dims.dims, dims.num_dims, &p))) {
    pw_destroy_buffer(under);
    return err;
  }
  uint64_t object;
  if ((err = place(c, device, pw_shape_bytes(p.shape), &object))) {
    drop_parts(&p);
    pw_destroy_buffer(under);
    return err;
  }
  *handle = new_buffer(&p, c, under, device, memory, object);
  return NULL;
}

void pw_target(PJRT_Device* device, PJRT_Memory* memory, PJRT_Device** d, PJRT_Memory** m) {
  *m = memory ? memory : (device ? device->default_memory : NULL);
  *d = device;
  if (*d == NULL && *m != NULL && ((pw_memory*)*m)->num_devices > 0) *d = ((pw_memory*)*m)->devices[0];
}

PJRT_Error* pw_PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  PW_COPY(PJRT_Client_BufferFromHostBuffer_Args, a, args);
  PJRT_Device* device;
  PJRT_Memory* memory;
  pw_target(a.device, a.memory, &device, &memory);
  if (device == NULL || device->index < 0)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "a host buffer needs an addressable device or memory to go to, and this call names none");
  parts p;
  PJRT_Error* err = take_parts(args->type, args->dims, args->num_dims, &p);
  if (err) return err;
  uint64_t object;
  if ((err = place(args->client, device, pw_shape_bytes(p.shape), &object))) {
    drop_parts(&p);
    return err;
  }
  a.client = args->client->under;
  a.device = pw_lower_device(a.device);
  a.memory = pw_lower_memory(a.memory);
  if ((err = pw_under->PJRT_Client_BufferFromHostBuffer(&a))) {
    pw_array_is(p.array, args->client->session, object, 1);
    pw_array_drop(p.array);  // lets the core free the object
    pw_buffers_unused(&p.buffer, 1);
    pw_shape_drop(p.shape);
    return err;
  }
  args->done_with_host_buffer = a.done_with_host_buffer;
  args->buffer = new_buffer(&p, args->client, a.buffer, device, memory, object);
  PW_COUNT(puts, 1);
  return NULL;
}

#define LIVE(b, handle, slot)              \
  pw_buffer* b = pw_buffer_of(handle);     \
  if (b == NULL) return pw_buffer_gone(slot); \
  if (pw_is_deleted(b)) return pw_deleted(slot)

// READS is LIVE for slots that need the buffer's contents.
#define READS(b, handle, slot)          \
  LIVE(b, handle, slot);                \
  pp_reads(b->symbol);                  \
  do {                                  \
    PJRT_Error* none = pw_unmade(b);    \
    if (none) return none;              \
  } while (0)

PJRT_Error* pw_unmade(pw_buffer* b) { return b->under ? NULL : pw_provenance_fault(&b, 1); }

// failed_event makes an event with the error of a buffer that was never made. It takes the error.
static PJRT_Error* failed_event(PJRT_Error* why, PJRT_Event** event) {
  if (!PW_HAS(PJRT_Event_Create) || !PW_HAS(PJRT_Event_Set)) return why;
  PW_ARGS(PJRT_Event_Create_Args, make);
  PJRT_Error* err = pw_under->PJRT_Event_Create(&make);
  if (err == NULL) {
    PW_ARGS(PJRT_Event_Set_Args, set);
    set.event = make.event;
    pw_error_read(why, &set.error_code, &set.error_message, &set.error_message_size);
    if ((err = pw_under->PJRT_Event_Set(&set))) pw_destroy_event(make.event);
  }
  pw_error_free(why);
  *event = make.event;
  return err;
}

PJRT_Error* pw_ready(pw_buffer* b, PJRT_Event** event) {
  PJRT_Error* none = pw_unmade(b);
  if (none) return failed_event(none, event);
  PW_ARGS(PJRT_Buffer_ReadyEvent_Args, a);
  a.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_ReadyEvent(&a);
  *event = a.event;
  return err;
}

PJRT_Error* pw_PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  if (pw_forked) {  // jaxlib ends the process on an error
    args->event = pw_forked_event;
    return NULL;
  }
  LIVE(b, args->buffer, "PJRT_Buffer_ReadyEvent");
  pp_reads(b->symbol);
  PJRT_Error* err = pw_ready(b, &args->event);
  if (err == NULL) pw_provenance_event(args->event, b);
  return pw_provenance_error(err, b);
}

PJRT_Error* pw_PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args* args) {
  pw_buffer* b = pw_buffer_of(args->buffer);
  args->is_deleted = b == NULL || pw_is_deleted(b);
  if (args->is_deleted || b->under == NULL) return NULL;
  PW_ARGS(PJRT_Buffer_IsDeleted_Args, a);
  a.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_IsDeleted(&a);
  args->is_deleted = a.is_deleted;
  return err;
}

// broken_promise returns the error of a run that failed to keep a promise: such a buffer has no address, and the plugin
// ends the process when it is asked for one. With wait it waits for a run that is not launched yet; without, where
// waiting could be waiting for the caller's own GIL, it returns an error.
static PJRT_Error* broken_promise(pw_buffer* b, const char* slot, bool wait) {
  if (!b->promise) return NULL;
  PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
  ready.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_ReadyEvent(&ready);
  if (err) return err;
  PW_ARGS(PJRT_Event_Await_Args, await);
  await.event = ready.event;
  PW_ARGS(PJRT_Event_IsReady_Args, is);
  is.event = ready.event;
  err = pw_under->PJRT_Event_IsReady(&is);
  bool unmade = atomic_load_explicit(&b->array->gang, memory_order_acquire) != 0 ||
                atomic_load_explicit(&b->array->moving, memory_order_acquire);
  if (err == NULL && !is.is_ready && !wait && unmade)
    err = pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                   "%s: this array has no address before its computation was launched; call block_until_ready() first",
                   slot);
  if (err == NULL && (wait || is.is_ready)) err = pw_provenance_error(pw_under->PJRT_Event_Await(&await), b);
  PW_ARGS(PJRT_Event_Destroy_Args, done);
  done.event = ready.event;
  PJRT_Error* late = pw_under->PJRT_Event_Destroy(&done);
  if (late) pw_error_free(late);
  return err;
}

PJRT_Error* pw_PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args* args) {
  READS(b, args->buffer, "PJRT_Buffer_IncreaseExternalReferenceCount");
  PW_COUNT(fetches, 1);
  PJRT_Error* err = broken_promise(b, "PJRT_Buffer_IncreaseExternalReferenceCount", true);
  if (err) return err;
  PW_COPY(PJRT_Buffer_IncreaseExternalReferenceCount_Args, a, args);
  a.buffer = b->under;
  return pw_provenance_error(pw_under->PJRT_Buffer_IncreaseExternalReferenceCount(&a), b);
}

PJRT_Error* pw_buffer_wait_on_stream(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args* args, pw_wait_on_stream under) {
  READS(b, args->buffer, "PJRT_Wait_Until_Buffer_Ready_On_Stream");
  PJRT_Error* err = broken_promise(b, "PJRT_Wait_Until_Buffer_Ready_On_Stream", true);
  if (err) return err;
  PW_COPY(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args, a, args);
  a.buffer = b->under;
  return pw_provenance_error(under(&a), b);
}

// The count goes down even if the buffer was deleted after it went up.
PJRT_Error* pw_PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args* args) {
  pw_buffer* b = pw_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_DecreaseExternalReferenceCount");
  if (b->under == NULL) return NULL;  // it never went up
  PW_COPY(PJRT_Buffer_DecreaseExternalReferenceCount_Args, a, args);
  a.buffer = b->under;
  return pw_under->PJRT_Buffer_DecreaseExternalReferenceCount(&a);
}

PJRT_Error* pw_PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args* args) {
  READS(b, args->buffer, "PJRT_Buffer_UnsafePointer");
  PW_COUNT(fetches, 1);
  PJRT_Error* err = broken_promise(b, "PJRT_Buffer_UnsafePointer", false);
  if (err) return err;
  PW_COPY(PJRT_Buffer_UnsafePointer_Args, a, args);
  a.buffer = b->under;
  err = pw_under->PJRT_Buffer_UnsafePointer(&a);
  args->buffer_pointer = a.buffer_pointer;
  return pw_provenance_error(err, b);
}

PJRT_Error* pw_PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args* args) {
  READS(b, args->buffer, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer");
  PW_COUNT(fetches, 1);
  PJRT_Error* err = broken_promise(b, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer", false);
  if (err) return err;
  PW_COPY(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args, a, args);
  a.buffer = b->under;
  err = pw_under->PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&a);
  args->device_memory_ptr = a.device_memory_ptr;
  return pw_provenance_error(err, b);
}

PJRT_Error* pw_PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  if (pw_forked) return pw_forked_error();
  READS(b, args->src, "PJRT_Buffer_ToHostBuffer");
  if (args->dst) PW_COUNT(fetches, 1);
  PW_COPY(PJRT_Buffer_ToHostBuffer_Args, a, args);
  a.src = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_ToHostBuffer(&a);
  args->dst_size = a.dst_size;
  args->event = a.event;
  if (err == NULL && args->dst) pw_provenance_event(a.event, b);
  return pw_provenance_error(err, b);
}

PJRT_Error* pw_PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_CopyToDevice");
  if (pp_capturing && b->symbol)
    return pp_copy(&pw_frontend, args->buffer, args->dst_device->default_memory, &args->dst_buffer);
  PJRT_Error* err = pw_unmade(b);
  if (err) return err;
  PW_ARGS(PJRT_Buffer_CopyToDevice_Args, a);
  a.buffer = b->under;
  a.dst_device = pw_lower_device(args->dst_device);
  err = pw_under->PJRT_Buffer_CopyToDevice(&a);
  if (err) return pw_provenance_error(err, b);
  err = pw_adopt(args->dst_device->client, a.dst_buffer, args->dst_device, args->dst_device->default_memory,
                 &args->dst_buffer);
  if (err == NULL) pw_provenance_pass(b, pw_buffer_of(args->dst_buffer)->array);
  return err;
}

PJRT_Error* pw_PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_CopyToMemory");
  if (pp_capturing && b->symbol) return pp_copy(&pw_frontend, args->buffer, args->dst_memory, &args->dst_buffer);
  PJRT_Device* device;
  PJRT_Memory* memory;
  pw_target(NULL, args->dst_memory, &device, &memory);
  PJRT_Error* err = pw_unmade(b);
  if (err) return err;
  PW_ARGS(PJRT_Buffer_CopyToMemory_Args, a);
  a.buffer = b->under;
  a.dst_memory = pw_lower_memory(args->dst_memory);
  err = pw_under->PJRT_Buffer_CopyToMemory(&a);
  if (err) return pw_provenance_error(err, b);
  err = pw_adopt(device ? device->client : b->device->client, a.dst_buffer, device, memory, &args->dst_buffer);
  if (err == NULL) pw_provenance_pass(b, pw_buffer_of(args->dst_buffer)->array);
  return err;
}

PJRT_Error* pw_PJRT_Buffer_DonateWithControlDependency(PJRT_Buffer_DonateWithControlDependency_Args* args) {
  if (!PW_HAS(PJRT_Buffer_DonateWithControlDependency))
    return pw_unimplemented("PJRT_Buffer_DonateWithControlDependency");
  READS(b, args->buffer, "PJRT_Buffer_DonateWithControlDependency");
  if (b->of)
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                    "PJRT_Buffer_DonateWithControlDependency: the array has other references");
  PW_COPY(PJRT_Buffer_DonateWithControlDependency_Args, a, args);
  a.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_DonateWithControlDependency(&a);
  args->callback_data = a.callback_data;
  args->dependency_ready_callback = a.dependency_ready_callback;
  if (err) return err;
  pw_buffer_release(b);
  return pw_adopt(b->device->client, a.out_buffer, b->device, b->memory, &args->out_buffer);
}

PJRT_Error* pw_PJRT_Buffer_Bitcast(PJRT_Buffer_Bitcast_Args* args) {
  if (!PW_HAS(PJRT_Buffer_Bitcast)) return pw_unimplemented("PJRT_Buffer_Bitcast");
  READS(b, args->buffer, "PJRT_Buffer_Bitcast");
  PW_COPY(PJRT_Buffer_Bitcast_Args, a, args);
  a.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_Bitcast(&a);
  if (err) return err;
  return pw_adopt(b->device->client, a.out_buffer, b->device, b->memory, (PJRT_Buffer**)&args->out_buffer);
}

// The generated table has the other ways to make a buffer.

PJRT_Error* pw_PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args* args) {
  if (!PW_HAS(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer))
    return pw_unimplemented("PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer");
  PW_COPY(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args, a, args);
  PJRT_Error* err = pw_under->PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(&a);
  if (err) return err;
  PW_ARGS(PJRT_Buffer_Memory_Args, at);
  at.buffer = a.buffer_out;
  if ((err = pw_under->PJRT_Buffer_Memory(&at))) {
    pw_destroy_buffer(a.buffer_out);
    return err;
  }
  PJRT_Client* client = pw_client_with(at.memory);
  PJRT_Memory* memory = client ? pw_memory_of(client, at.memory) : NULL;
  if (memory == NULL) {
    pw_destroy_buffer(a.buffer_out);
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                    "the transfer's memory belongs to no client that is open here; was its client destroyed?");
  }
  PJRT_Device* device;
  pw_target(NULL, memory, &device, &memory);
  return pw_adopt(client, a.buffer_out, device, memory, &args->buffer_out);
}

PJRT_Error* pw_PJRT_AsyncHostToDeviceTransferManager_Device(PJRT_AsyncHostToDeviceTransferManager_Device_Args* args) {
  if (!PW_HAS(PJRT_AsyncHostToDeviceTransferManager_Device))
    return pw_unimplemented("PJRT_AsyncHostToDeviceTransferManager_Device");
  PW_COPY(PJRT_AsyncHostToDeviceTransferManager_Device_Args, a, args);
  PJRT_Error* err = pw_under->PJRT_AsyncHostToDeviceTransferManager_Device(&a);
  if (err) return err;
  args->device_out = pw_device_anywhere(a.device_out);
  return NULL;
}
