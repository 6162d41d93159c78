// XLA FFI handlers of a user, for tests/test_ffi.py, tests/gate.py, tests/cluster/test_handlers.py and
// tests/bench/sleeping.py: built with the headers that jaxlib ships.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "xla/ffi/api/c_api.h"

static XLA_FFI_Error* fail(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, text, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// Answers the metadata probe with a version; 0 when the frame is no probe.
static int answer(XLA_FFI_CallFrame* frame, int major, int minor, int64_t state) {
  if (frame->extension_start == NULL || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
  metadata->api_version = (XLA_FFI_Api_Version){XLA_FFI_Api_Version_STRUCT_SIZE, NULL, major, minor};
  metadata->traits = 0;
  metadata->state_type_id.type_id = state;
  return 1;
}

static const float* in(const XLA_FFI_CallFrame* frame) { return ((XLA_FFI_Buffer*)frame->args.args[0])->data; }
static float* out(const XLA_FFI_CallFrame* frame) { return ((XLA_FFI_Buffer*)frame->rets.rets[0])->data; }
static int64_t count(const XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Buffer* buffer = frame->args.args[0];
  int64_t n = 1;
  for (int64_t i = 0; i < buffer->rank; i++) n *= buffer->dims[i];
  return n;
}

static XLA_FFI_Error* add(const XLA_FFI_CallFrame* frame, float what) {
  for (int64_t i = 0; i < count(frame); i++) out(frame)[i] = in(frame)[i] + what;
  return NULL;
}

// Built with the newest headers, whatever the plugin has.
XLA_FFI_Error* add_one(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, 99, 0)) return NULL;
  return add(frame, 1);
}

XLA_FFI_Error* add_two(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL;
  return add(frame, 2);
}

// Takes a while, and then says that it has run.
XLA_FFI_Error* tells(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL;
  nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
  puts("told");
  fflush(stdout);
  return add(frame, 1);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Takes the nanoseconds of its attribute, and a processor in the end only: a sleep ends up to 0.2 ms late.
XLA_FFI_Error* sleeps(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL;
  const int64_t whole = *(int64_t*)((XLA_FFI_Scalar*)frame->attrs.attrs[0])->value;
  const int64_t end = now() + whole;
  nanosleep(&(struct timespec){.tv_nsec = whole - 250000}, NULL);
  while (now() < end);
  return add(frame, 0);
}

// One that the library does not name.
static XLA_FFI_Error* nameless(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL;
  return add(frame, 3);
}
void* nameless_handler(void) { return (void*)nameless; }

XLA_FFI_Error* other_major(XLA_FFI_CallFrame* frame) {
  if (answer(frame, 7, 3, 0)) return NULL;
  return add(frame, 1);
}

XLA_FFI_Error* refuses_to_run(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL;
  return fail(frame, XLA_FFI_Error_Code_OUT_OF_RANGE, "the handler says no");
}

// A handler with state: instantiate makes it, execute adds it, XLA destroys it.
XLA_FFI_TypeId state_id;
static int alive;
static void destroy_state(void* state) {
  __atomic_sub_fetch(&alive, 1, __ATOMIC_SEQ_CST);
  free(state);
}
XLA_FFI_TypeInfo state_info = {XLA_FFI_TypeInfo_STRUCT_SIZE, NULL, destroy_state};
XLA_FFI_TypeId* stateful_type_id(void) { return &state_id; }
XLA_FFI_TypeInfo* stateful_type_info(void) { return &state_info; }
int states_alive(void) { return __atomic_load_n(&alive, __ATOMIC_SEQ_CST); }

XLA_FFI_Error* stateful_instantiate(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, state_id.type_id)) return NULL;
  float* state = malloc(sizeof(*state));
  *state = 40;
  __atomic_add_fetch(&alive, 1, __ATOMIC_SEQ_CST);
  XLA_FFI_State_Set_Args args = {.struct_size = XLA_FFI_State_Set_Args_STRUCT_SIZE,
                                 .ctx = frame->ctx,
                                 .stage = XLA_FFI_ExecutionStage_INSTANTIATE,
                                 .type_id = &state_id,
                                 .state = state};
  return frame->api->XLA_FFI_State_Set(&args);
}

XLA_FFI_Error* stateful_execute(XLA_FFI_CallFrame* frame) {
  if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL;
  XLA_FFI_State_Get_Args args = {.struct_size = XLA_FFI_State_Get_Args_STRUCT_SIZE,
                                 .ctx = frame->ctx,
                                 .stage = XLA_FFI_ExecutionStage_INSTANTIATE,
                                 .type_id = &state_id};
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Get(&args);
  return error ? error : add(frame, *(float*)args.state);
}

// A handler that stays on its device until the gate is open, but for those that run inside of a call of the thread that
// shut the gate: these could wait without end, and are counted.
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards all of the gate
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static pthread_t watched;
static int shut, waiting, inside;

void gate_shut(void) {
  pthread_mutex_lock(&mu);
  shut = 1;
  inside = 0;
  watched = pthread_self();
  pthread_mutex_unlock(&mu);
}

// Gives how many ran inside of calls.
int gate_open(void) {
  pthread_mutex_lock(&mu);
  shut = 0;
  pthread_cond_broadcast(&moved);
  int n = inside;
  pthread_mutex_unlock(&mu);
  return n;
}

void gate_await(int n) {
  pthread_mutex_lock(&mu);
  while (waiting < n) pthread_cond_wait(&moved, &mu);
  pthread_mutex_unlock(&mu);
}

// It says that it has the plugin's version: stock plugins take no newer one.
XLA_FFI_Error* gate(XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Api_Version* version = &frame->api->api_version;
  if (answer(frame, version->major_version, version->minor_version, 0)) return NULL;
  pthread_mutex_lock(&mu);
  if (shut && pthread_equal(pthread_self(), watched)) {
    inside++;
  } else {
    waiting++;
    pthread_cond_broadcast(&moved);
    while (shut) pthread_cond_wait(&moved, &mu);
    waiting--;
  }
  pthread_mutex_unlock(&mu);
  return add(frame, 1);
}

// More different functions than the library has trampolines: they take a compiler seconds.
#ifdef MANY
#define HEX(X, ...) \
  X(__VA_ARGS__, 0) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) X(__VA_ARGS__, 5) \
  X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8) X(__VA_ARGS__, 9) X(__VA_ARGS__, a) X(__VA_ARGS__, b) \
  X(__VA_ARGS__, c) X(__VA_ARGS__, d) X(__VA_ARGS__, e) X(__VA_ARGS__, f)
#define HEX2(X, ...) \
  X(__VA_ARGS__, 0) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) X(__VA_ARGS__, 5) \
  X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8) X(__VA_ARGS__, 9) X(__VA_ARGS__, a) X(__VA_ARGS__, b) \
  X(__VA_ARGS__, c) X(__VA_ARGS__, d) X(__VA_ARGS__, e) X(__VA_ARGS__, f)
#define BLOCKS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define DEFINE(a, b, c)                                              \
  static XLA_FFI_Error* many_##a##b##c(XLA_FFI_CallFrame* frame) {   \
    if (answer(frame, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR, 0)) return NULL; \
    return add(frame, 0x##a##b##c);                                  \
  }
#define DEFINE_ROW(a, b) HEX2(DEFINE, a, b)
#define DEFINE_BLOCK(a) HEX(DEFINE_ROW, a)
BLOCKS(DEFINE_BLOCK)
#define NAME(a, b, c) many_##a##b##c,
#define NAME_ROW(a, b) HEX2(NAME, a, b)
#define NAME_BLOCK(a) HEX(NAME_ROW, a)
XLA_FFI_Handler* const many[] = {BLOCKS(NAME_BLOCK)};
const int many_count = sizeof(many) / sizeof(many[0]);
#endif
