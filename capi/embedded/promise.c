// Promises: buffers that are handed out before their contents exist. The plugin makes them, and one call for each
// fulfills it.
#include "run.h"

PJRT_Error* pw_promise_new(PJRT_Client* c, PJRT_Memory* memory, const pw_shape* shape, const int64_t* minor_to_major,
                           PJRT_Buffer** buffer, void** fulfill) {
  PJRT_Buffer_MemoryLayout layout = pw_tiled(minor_to_major, shape->num_dims);
  PW_ARGS(PJRT_Client_CreateAliasBuffer_Args, a);
  a.client = c->under;
  a.memory = pw_lower_memory(memory);
  a.shape_dims = shape->dims;
  a.shape_num_dims = shape->num_dims;
  a.shape_element_type = shape->type;
  a.shape_layout = &layout;
  PJRT_Error* err = pw_under->PJRT_Client_CreateAliasBuffer(&a);
  *buffer = a.alias_buffer;
  *fulfill = a.fulfill_alias_buffer_cb;
  return err;
}

PJRT_Error* pw_fulfill(PJRT_Client* c, void* callback, PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Client_FulfillAliasBuffer_Args, a);
  a.client = c->under;
  a.buffer = buffer;
  a.status_code = PJRT_Error_Code_OK;
  a.fulfill_alias_buffer_cb = callback;
  return pw_under->PJRT_Client_FulfillAliasBuffer(&a);
}

// error_buffer returns a buffer of the plugin's that has failed; NULL if the plugin cannot make one.
static PJRT_Buffer* error_buffer(PJRT_Client* c, PJRT_Memory* memory, const pw_shape* shape,
                                 const int64_t* minor_to_major, PJRT_Error_Code code, const char* message,
                                 size_t size) {
  if (!PW_HAS(PJRT_Client_CreateErrorBuffer)) return NULL;
  PJRT_Buffer_MemoryLayout layout = pw_tiled(minor_to_major, shape->num_dims);
  PW_ARGS(PJRT_Client_CreateErrorBuffer_Args, a);
  a.client = c->under;
  a.error_code = code;
  a.error_message = message;
  a.error_message_size = size;
  a.shape_dims = shape->dims;
  a.shape_num_dims = shape->num_dims;
  a.shape_element_type = shape->type;
  a.shape_layout = &layout;
  a.memory = pw_lower_memory(memory);
  PJRT_Error* err = pw_under->PJRT_Client_CreateErrorBuffer(&a);
  if (err) pw_error_free(err);
  return err ? NULL : a.buffer;
}

void pw_fulfill_error(PJRT_Client* c, void* callback, PJRT_Memory* memory, const pw_shape* shape,
                     const int64_t* minor_to_major, PJRT_Error_Code code, const char* message, size_t size) {
  PJRT_Error* err;
  PJRT_Buffer* failed = error_buffer(c, memory, shape, minor_to_major, code, message, size);
  if (failed) {
    err = pw_fulfill(c, callback, failed);
    pw_destroy_buffer(failed);
  } else {
    PW_ARGS(PJRT_Client_FulfillAliasBuffer_Args, a);
    a.client = c->under;
    a.status_code = code;
    a.error_message = message;
    a.error_message_size = size;
    a.fulfill_alias_buffer_cb = callback;
    err = pw_under->PJRT_Client_FulfillAliasBuffer(&a);
  }
  if (err) pw_error_free(err);
}
