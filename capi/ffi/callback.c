// Host callbacks: pure_callback, io_callback, debug.callback and debug.print.
//
// JAX lowers them to a custom call with the attribute index; jaxlib hands the
// execution a table of callables, as user data of its execute context. jaxlib's
// own handler needs a state that it does not share, so this one takes its place.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

// How jaxlib's FfiLoadedHostCallbacks begins (seen in jaxlib 0.10.2 and 0.12.0.1).
typedef struct {
  void** callables;  // borrowed references to Python callables
  uint32_t count;
} host_callbacks;

enum { WORDS_ON_STACK = 256 };

static const char kNotCalled[] = "CpuCallback error calling callback: it could not be called";

static pw_callback python;  // read and set atomically

// --- threads that are inside Python ---

static int inside;
static bool closed;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // for left only
static pthread_cond_t left;
static pthread_once_t left_once = PTHREAD_ONCE_INIT;

static void make_left(void) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&left, &attr);
  pthread_condattr_destroy(&attr);
}

// Counted first, checked afterwards: either the closer sees the count, or this thread sees that Python is closed.
bool pw_ffi_enter_python(void) {
  __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&closed, __ATOMIC_SEQ_CST)) return true;
  pw_ffi_leave_python();
  return false;
}

void pw_ffi_leave_python(void) {
  __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&closed, __ATOMIC_SEQ_CST)) return;
  pthread_once(&left_once, make_left);
  pthread_mutex_lock(&mu);
  pthread_cond_broadcast(&left);
  pthread_mutex_unlock(&mu);
}

int pathways_ffi_close(int64_t timeout_ms) {
  pthread_once(&left_once, make_left);
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1000000;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  __atomic_store_n(&closed, true, __ATOMIC_SEQ_CST);
  pthread_mutex_lock(&mu);
  int waited = 0;
  while (waited == 0 && __atomic_load_n(&inside, __ATOMIC_SEQ_CST) > 0)
    waited = pthread_cond_timedwait(&left, &mu, &until);
  pthread_mutex_unlock(&mu);
  return __atomic_load_n(&inside, __ATOMIC_SEQ_CST);
}

// --- one call ---

static XLA_FFI_Error* fail(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, char* text) {
  XLA_FFI_Error* error = pw_ffi_error(api, code, text);
  free(text);
  return error;
}

static bool find_index(const XLA_FFI_Attrs* attrs, uint64_t* index) {
  XLA_FFI_ByteSpan** names = attrs->names;
  const int* types = attrs->types;
  for (int64_t i = 0; i < attrs->size; i++) {
    if (names[i]->len != 5 || memcmp(names[i]->ptr, "index", 5) != 0 || types[i] != XLA_FFI_AttrType_SCALAR) continue;
    const XLA_FFI_Scalar* scalar = ((void**)attrs->attrs)[i];
    if (scalar->dtype != XLA_FFI_DataType_U64) return false;
    memcpy(index, scalar->value, sizeof(*index));
    return true;
  }
  return false;
}

static XLA_FFI_Error* find_callable(const XLA_FFI_CallFrame* frame, void** callable) {
  const XLA_FFI_Api* api = frame->api;
  uint64_t index;
  if (!find_index(&frame->attrs, &index))
    return fail(api, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                pw_text("host callback has no attribute index of type u64: the program was made by a JAX whose "
                        "callbacks this version does not know"));
  XLA_FFI_TypeId type_id = {PW_FFI_HOST_CALLBACKS};
  XLA_FFI_ExecutionContext_Get_Args args = {.struct_size = XLA_FFI_ExecutionContext_Get_Args_STRUCT_SIZE,
                                            .ctx = frame->ctx,
                                            .type_id = &type_id};
  XLA_FFI_Error* (*get)(XLA_FFI_ExecutionContext_Get_Args*) = api->XLA_FFI_ExecutionContext_Get;
  XLA_FFI_Error* error = get(&args);
  char* why = NULL;
  if (error != NULL) pw_ffi_take_error(api, error, &why);
  const host_callbacks* table = args.data;
  if (error == NULL && table != NULL && index < table->count) {
    *callable = table->callables[index];
    return NULL;
  }
  error = fail(api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
               pw_text("host callback %llu has no Python function in this execution%s%s. Callbacks belong to the "
                       "process that traced them: trace and compile the function again here",
                       (unsigned long long)index, why ? ": " : "", why ? why : ""));
  free(why);
  return error;
}

static int64_t* put_buffer(int64_t* word, const XLA_FFI_Buffer* buffer) {
  *word++ = buffer->dtype;
  *word++ = (int64_t)(intptr_t)buffer->data;
  *word++ = buffer->rank;
  if (buffer->rank > 0) memcpy(word, buffer->dims, buffer->rank * sizeof(int64_t));
  return word + buffer->rank;
}

static size_t count_words(const XLA_FFI_CallFrame* frame) {
  size_t count = 2;
  XLA_FFI_Buffer **args = frame->args.args, **rets = frame->rets.rets;
  for (int64_t i = 0; i < frame->args.size; i++) count += 3 + args[i]->rank;
  for (int64_t i = 0; i < frame->rets.size; i++) count += 3 + rets[i]->rank;
  return count;
}

static void put_words(const XLA_FFI_CallFrame* frame, int64_t* word) {
  XLA_FFI_Buffer **args = frame->args.args, **rets = frame->rets.rets;
  *word++ = frame->args.size;
  *word++ = frame->rets.size;
  for (int64_t i = 0; i < frame->args.size; i++) word = put_buffer(word, args[i]);
  for (int64_t i = 0; i < frame->rets.size; i++) word = put_buffer(word, rets[i]);
}

static XLA_FFI_Error* host_callback(XLA_FFI_CallFrame* frame) {
  if (pw_ffi_answer_probe(frame)) return NULL;
  const XLA_FFI_Api* api = frame->api;
  pw_callback run = __atomic_load_n(&python, __ATOMIC_ACQUIRE);
  if (run == NULL)
    return pw_ffi_error(api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                        "host callback not run: no Python is attached to this process");
  void* callable = NULL;
  XLA_FFI_Error* error = find_callable(frame, &callable);
  if (error != NULL) return error;

  int64_t few[WORDS_ON_STACK];
  size_t count = count_words(frame);
  int64_t* words = count <= WORDS_ON_STACK ? few : pw_alloc(count * sizeof(int64_t));
  if (words == NULL)
    return pw_ffi_error(api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "no memory for the arguments of a host callback");
  put_words(frame, words);
  pw_callback_call call = {0};
  if (run(callable, &call, words, count) != 1)
    error = pw_ffi_callback_error(api, XLA_FFI_Error_Code_INTERNAL, &call, kNotCalled);
  free(call.error);
  if (words != few) free(words);
  return error;
}

bool pw_ffi_has_functions(const void* functions) { return ((const host_callbacks*)functions)->count > 0; }

void* pw_ffi_functions_copy(const void* functions) {
  const host_callbacks* from = functions;
  size_t size = from->count * sizeof *from->callables;
  host_callbacks* to = pw_alloc(sizeof *to + size);
  if (to == NULL) return NULL;
  *to = (host_callbacks){(void**)(to + 1), from->count};
  memcpy(to->callables, from->callables, size);
  return to;
}

static _Thread_local bool interrupted;

bool pw_ffi_interrupted(void) {
  bool was = interrupted;
  interrupted = false;
  return was;
}

int pw_ffi_call_python(const void* functions, uint64_t index, const int64_t* words, size_t count, char** message) {
  const host_callbacks* table = functions;
  *message = NULL;
  if (index >= table->count) {
    *message = pw_text("host callback %llu has no Python function in this execution, which has %u",
                       (unsigned long long)index, table->count);
    return PJRT_Error_Code_FAILED_PRECONDITION;
  }
  pw_callback run = __atomic_load_n(&python, __ATOMIC_ACQUIRE);
  if (run == NULL || !pw_ffi_enter_python()) {
    *message = pw_copy_text(PW_FFI_EXITING);
    return PJRT_Error_Code_UNAVAILABLE;
  }
  pw_callback_call call = {0};
  int done = run(table->callables[index], &call, words, count);
  pw_ffi_leave_python();
  if (done == PW_CALLBACK_INTERRUPTED) interrupted = true;
  if (done == 1) {
    free(call.error);
    return 0;
  }
  *message = call.error || call.no_memory ? call.error : pw_copy_text(kNotCalled);
  return PJRT_Error_Code_INTERNAL;
}

void pathways_ffi_callback_fail(pw_callback_call* call, const char* text) {
  free(call->error);
  call->error = pw_copy_text(text);
  call->no_memory = call->error == NULL;
}

XLA_FFI_Error* pw_ffi_callback_error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const pw_callback_call* call,
                                     const char* silent) {
  if (call->no_memory)
    return pw_ffi_error(api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                        "this process has no memory left for the text of an exception of Python's");
  return pw_ffi_error(api, code, call->error ? call->error : silent);
}

char* pathways_set_callback(pw_callback callback) {
  __atomic_store_n(&python, callback, __ATOMIC_RELEASE);
  if (callback == NULL) return NULL;
  __atomic_store_n(&closed, false, __ATOMIC_SEQ_CST);
  char* refusal = pw_ffi_serve_local(host_callback);
  if (refusal == NULL)
    refusal = pathways_ffi_register("xla_ffi_python_cpu_callback", "Host", NULL, NULL, NULL, pw_ffi_host_call, 0);
  if (refusal != NULL) return refusal;
  return pathways_ffi_register("xla_ffi_partitioned_python_cpu_callback", "Host", NULL, NULL, NULL, pw_ffi_host_call,
                               0);
}
