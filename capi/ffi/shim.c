// The version shim: trampolines around handlers.
//
// A handler says in its metadata against which minor version of XLA FFI it was
// built, and XLA refuses one that is newer than itself, although minor versions
// only append. So each handler is registered behind a trampoline that answers
// the probe with the plugin's version and passes every other frame on. Handlers
// have no user data, so trampolines are a static table of C functions.
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { API_COPY = 1024 };

typedef struct {
  pw_ffi_handler handler;
  bool calls_python;
} slot;

// Slots are filled in order under the registry's lock, before the plugin sees
// their trampoline, and never change afterwards; handlers read them freely.
static slot slots[PW_FFI_SLOTS];
static int slots_used;

_Thread_local pw_ffi_version pw_ffi_probed = {-1, -1};

// Every run reads it: the model of pp_capturing, see capi/capture/record.c.
static _Thread_local int depth __attribute__((tls_model("initial-exec")));
int pw_ffi_in_callback(void) { return depth; }

// --- probes ---

static void clamp_version(const XLA_FFI_Api* api, XLA_FFI_Metadata* metadata) {
  XLA_FFI_Api_Version* version = &metadata->api_version;
  pw_ffi_probed = (pw_ffi_version){version->major_version, version->minor_version};
  if (version->major_version == api->api_version.major_version &&
      version->minor_version > api->api_version.minor_version)
    version->minor_version = api->api_version.minor_version;
}

// --- errors that jaxlib takes apart ---
//
// jaxlib's buffer callback turns an error of Stream_Get into an absl::Status
// with its own code, not through the frame's api. An XLA_FFI_Error made by the
// plugin, another build of XLA, crashes it. So while such a handler runs, its
// frame carries a copy of the plugin's api whose Stream_Get answers with an
// error made by jaxlib.

static const XLA_FFI_Api* jaxlib_api;               // set once, atomically
static _Thread_local const XLA_FFI_Api* frame_api;  // the plugin's, while its copy is in the frame

XLA_FFI_Error* pathways_ffi_jaxlib_probe(XLA_FFI_CallFrame* frame) {
  __atomic_store_n(&jaxlib_api, (const XLA_FFI_Api*)frame->api, __ATOMIC_RELEASE);
  if (pw_ffi_answer_probe(frame)) return NULL;
  return pw_ffi_error(frame->api, XLA_FFI_Error_Code_UNIMPLEMENTED, "pathways: this target is not to be called");
}

static XLA_FFI_Error* stream_get(XLA_FFI_Stream_Get_Args* args) {
  XLA_FFI_Error* (*get)(XLA_FFI_Stream_Get_Args*) = frame_api->XLA_FFI_Stream_Get;
  XLA_FFI_Error* error = get(args);
  if (error == NULL) return NULL;
  char* text;
  int code = pw_ffi_take_error(frame_api, error, &text);
  if (code == XLA_FFI_Error_Code_UNKNOWN) code = XLA_FFI_Error_Code_UNIMPLEMENTED;
  error = pw_ffi_error(__atomic_load_n(&jaxlib_api, __ATOMIC_ACQUIRE), code, text ? text : "");
  free(text);
  return error;
}

static XLA_FFI_Error* run_python_handler(pw_ffi_handler handler, XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Api* api = frame->api;
  if (!pw_ffi_enter_python())
    return pw_ffi_error(api, XLA_FFI_Error_Code_UNAVAILABLE, PW_FFI_EXITING);
  _Alignas(XLA_FFI_Api) char copy[API_COPY];
  const XLA_FFI_Api* outer = frame_api;
  if (__atomic_load_n(&jaxlib_api, __ATOMIC_ACQUIRE) != NULL && api->struct_size <= sizeof(copy)) {
    memcpy(copy, api, api->struct_size);
    ((XLA_FFI_Api*)copy)->XLA_FFI_Stream_Get = stream_get;
    frame_api = api;
    frame->api = copy;
  }
  XLA_FFI_Error* error = handler(frame);
  frame->api = (void*)api;
  frame_api = outer;
  pw_ffi_leave_python();
  return error;
}

// --- trampolines ---

static XLA_FFI_Error* enter(int index, XLA_FFI_CallFrame* frame) {
  const slot s = slots[index];
  XLA_FFI_Metadata* metadata = pw_ffi_probe_of(frame);
  if (metadata != NULL) {
    XLA_FFI_Error* error = s.handler(frame);
    if (error == NULL) clamp_version(frame->api, metadata);
    return error;
  }
  depth++;
  XLA_FFI_Error* error = s.calls_python ? run_python_handler(s.handler, frame) : s.handler(frame);
  depth--;
  return error;
}

#define HEX(X, ...) \
  X(__VA_ARGS__, 0) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) X(__VA_ARGS__, 5) \
  X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8) X(__VA_ARGS__, 9) X(__VA_ARGS__, a) X(__VA_ARGS__, b) \
  X(__VA_ARGS__, c) X(__VA_ARGS__, d) X(__VA_ARGS__, e) X(__VA_ARGS__, f)
// The preprocessor does not expand a macro inside itself, so each digit has its own copy.
#define HEX2(X, ...) \
  X(__VA_ARGS__, 0) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) X(__VA_ARGS__, 5) \
  X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8) X(__VA_ARGS__, 9) X(__VA_ARGS__, a) X(__VA_ARGS__, b) \
  X(__VA_ARGS__, c) X(__VA_ARGS__, d) X(__VA_ARGS__, e) X(__VA_ARGS__, f)
#define BLOCKS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

#define DEFINE(a, b, c) \
  static XLA_FFI_Error* trampoline_##a##b##c(XLA_FFI_CallFrame* frame) { return enter(0x##a##b##c, frame); }
#define DEFINE_ROW(a, b) HEX2(DEFINE, a, b)
#define DEFINE_BLOCK(a) HEX(DEFINE_ROW, a)
BLOCKS(DEFINE_BLOCK)

#define NAME(a, b, c) trampoline_##a##b##c,
#define NAME_ROW(a, b) HEX2(NAME, a, b)
#define NAME_BLOCK(a) HEX(NAME_ROW, a)
static const pw_ffi_handler trampolines[] = {BLOCKS(NAME_BLOCK)};
_Static_assert(sizeof(trampolines) / sizeof(trampolines[0]) == PW_FFI_SLOTS, "one trampoline a slot");

bool pw_ffi_calls_python(const char* target) {
  return strcmp(target, "xla_buffer_python_cpu_callback") == 0 || strcmp(target, "xla_ffi_python_cpu_callback") == 0 ||
         strcmp(target, "xla_ffi_partitioned_python_cpu_callback") == 0;
}

pw_ffi_handler pw_ffi_wrap(pw_ffi_handler handler, bool calls_python) {
  int i = 0;
  while (i < slots_used && !(slots[i].handler == handler && slots[i].calls_python == calls_python)) i++;
  if (i == PW_FFI_SLOTS) return NULL;
  if (i == slots_used) slots[slots_used++] = (slot){handler, calls_python};
  return trampolines[i];
}
