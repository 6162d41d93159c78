// The functions of the Profiler extension. A client makes a profiler for each
// profile, starts and stops it, and collects one serialized XSpace.
//
// In the child of a fork, where Go does not run, a profiler records nothing.
#include "profile.h"

#include <stdlib.h>

#include "_cgo_export.h"

typedef struct {
  PJRT_Error_Code code;
  char* message;
} failure;

typedef struct {
  uint64_t recording;  // 0: not started, or stopped
  uint8_t* bytes;  // of the XSpace
  size_t size;
} profiler;

static failure no_memory = {PJRT_Error_Code_RESOURCE_EXHAUSTED, "this process has no memory left for a profile"};

static void* fail(int code, char* message) {
  if (code == 0) return NULL;
  failure* f = message ? pw_alloc(sizeof *f) : NULL;
  if (f == NULL) {
    free(message);
    return &no_memory;
  }
  *f = (failure){(PJRT_Error_Code)code, message};
  return f;
}

static void error_destroy(PLUGIN_Profiler_Error_Destroy_Args* args) {
  failure* f = args->error;
  if (f == NULL || f == &no_memory) return;
  free(f->message);
  free(f);
}

static void error_message(PLUGIN_Profiler_Error_Message_Args* args) {
  const failure* f = args->error;
  args->message = f->message;
  args->message_size = strlen(f->message);
}

static void* error_code(PLUGIN_Profiler_Error_GetCode_Args* args) {
  args->code = ((const failure*)args->error)->code;
  return NULL;
}

static void* create(PLUGIN_Profiler_Create_Args* args) {
  args->profiler = pw_zeros(1, sizeof(profiler));
  return args->profiler ? NULL : &no_memory;
}

static void* start(PLUGIN_Profiler_Start_Args* args) {
  profiler* p = args->profiler;
  if (pw_forked || p->recording) return NULL;
  char* message = NULL;
  int code = pwGoProfileStart(&p->recording, &message);
  return fail(code, message);
}

static void* stop(PLUGIN_Profiler_Stop_Args* args) {
  profiler* p = args->profiler;
  if (pw_forked || p->recording == 0) return NULL;
  char* message = NULL;
  int code = pwGoProfileStop(p->recording, &p->bytes, &p->size, &message);
  p->recording = 0;
  return fail(code, message);
}

static void* destroy(PLUGIN_Profiler_Destroy_Args* args) {
  profiler* p = args->profiler;
  if (p == NULL) return NULL;
  PLUGIN_Profiler_Stop_Args end = {.struct_size = sizeof end, .profiler = p};
  void* why = stop(&end);
  if (why) {
    PLUGIN_Profiler_Error_Destroy_Args gone = {.struct_size = sizeof gone, .error = why};
    error_destroy(&gone);
  }
  free(p->bytes);
  free(p);
  return NULL;
}

// collect_data is called without a buffer to ask for the size; some clients call it again with a buffer, others read
// the one that the first call returned.
static void* collect_data(PLUGIN_Profiler_CollectData_Args* args) {
  profiler* p = args->profiler;
  if (args->buffer == NULL) {
    args->buffer = p->bytes;
    args->buffer_size_in_bytes = p->size;
  } else if (args->buffer != p->bytes && args->buffer_size_in_bytes >= p->size && p->size > 0) {
    memcpy(args->buffer, p->bytes, p->size);
  }
  return NULL;
}

// jaxlib 0.10 accepts only a table of exactly this size, and ends the process otherwise; newer ones accept it too, and
// then need nothing after collect_data.
static PLUGIN_Profiler_Api functions = {
    .struct_size = offsetof(PLUGIN_Profiler_Api, consume),
    .error_destroy = (void*)error_destroy,
    .error_message = (void*)error_message,
    .error_get_code = (void*)error_code,
    .create = (void*)create,
    .destroy = (void*)destroy,
    .start = (void*)start,
    .stop = (void*)stop,
    .collect_data = (void*)collect_data,
};

PJRT_Extension_Base* pw_profiler_extension(void) {
  PJRT_Profiler_Extension* x = pw_zeros(1, sizeof *x);
  if (x == NULL) return NULL;  // the table is made once and cannot return an error: the extension is missing
  x->base.struct_size = PJRT_Profiler_Extension_STRUCT_SIZE;
  x->base.type = PJRT_Extension_Type_Profiler;
  x->profiler_api = &functions;
  x->traceme_context_id = -1;
  return &x->base;
}
