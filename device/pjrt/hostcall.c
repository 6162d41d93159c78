#include <stdio.h>

#include "handler.h"
#include "hostcall.h"

enum { VALUES_ON_STACK = 16 };

// Written in Go, like pathwaysDriverCollective.
extern void* pathwaysDriverHostCall(pwdrv_host_call* call);

static bool read_values(int64_t n, const int* types, XLA_FFI_Buffer** buffers, pwdrv_value* out) {
  for (int64_t i = 0; i < n; i++) {
    const XLA_FFI_Buffer* b = buffers[i];
    int bits = types[i] == 1 ? pwdrv_bits(b->dtype) : -1;
    if (bits < 0) return false;
    size_t count = 1;
    for (int64_t k = 0; k < b->rank; k++) count *= (size_t)((const int64_t*)b->dims)[k];
    out[i] = (pwdrv_value){(uint32_t)b->dtype, (const int64_t*)b->dims, (size_t)b->rank, (count * (size_t)bits + 7) / 8,
                           b->data};
  }
  return true;
}

static bool read_index(const XLA_FFI_Attrs* attrs, uint64_t* index) {
  for (int64_t i = 0; i < attrs->size; i++) {
    const XLA_FFI_ByteSpan* name = ((XLA_FFI_ByteSpan**)attrs->names)[i];
    if (name->len != 5 || memcmp(name->ptr, "index", 5) != 0 ||
        ((const int*)attrs->types)[i] != XLA_FFI_AttrType_SCALAR)
      continue;
    const XLA_FFI_Scalar* scalar = ((void**)attrs->attrs)[i];
    if (scalar->dtype != XLA_FFI_DataType_U64) return false;
    memcpy(index, scalar->value, sizeof *index);
    return true;
  }
  return false;
}

static pw_ffi_handler local;  // read and set atomically

void pw_ffi_host_call_local(pw_ffi_handler handler) { __atomic_store_n(&local, handler, __ATOMIC_RELEASE); }

XLA_FFI_Error* pw_ffi_host_call(XLA_FFI_CallFrame* frame) {
  if (pw_ffi_answer_probe(frame)) return NULL;
  const XLA_FFI_Api* api = frame->api;
  pw_ffi_handler here = __atomic_load_n(&local, __ATOMIC_ACQUIRE);
  if (here != NULL && pwdrv_context_of(api, frame->ctx, PW_FFI_HOST_CALLBACKS) != NULL) return here(frame);
  pwdrv_host_call call = {.api = api, .arguments = (size_t)frame->args.size, .results = (size_t)frame->rets.size};
  bool indexed = read_index(&frame->attrs, &call.index);
  call.client = pwdrv_client_of(api, frame->ctx);
  if (!indexed)
    return pw_ffi_error(
        api, XLA_FFI_Error_Code_INVALID_ARGUMENT,
        "host callback has no attribute index of type u64: the program was made by a JAX whose callbacks "
        "this version does not know");
  if (call.client == 0) {
    char text[256];
    snprintf(text, sizeof text,
             "host callback %llu has no Python function in this execution. Callbacks belong to the process that traced "
             "them: trace and compile the function again here",
             (unsigned long long)call.index);
    return pw_ffi_error(api, XLA_FFI_Error_Code_FAILED_PRECONDITION, text);
  }
  XLA_FFI_Error* error = pwdrv_read_run(api, frame->ctx, &call.launch, &call.local);
  if (error != NULL) return error;
  pwdrv_value few[VALUES_ON_STACK];
  size_t count = call.arguments + call.results;
  call.values = count <= VALUES_ON_STACK ? few : pwdrv_alloc(count * sizeof(pwdrv_value));
  if (call.values == NULL) return pw_ffi_error(api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, kNoMemory);
  if (read_values(frame->args.size, (const int*)frame->args.types, (XLA_FFI_Buffer**)frame->args.args, call.values) &&
      read_values(frame->rets.size, (const int*)frame->rets.types, (XLA_FFI_Buffer**)frame->rets.rets,
                  call.values + call.arguments)) {
    error = pathwaysDriverHostCall(&call);
    frame->future = call.future;
  } else {
    error = pw_ffi_error(api, XLA_FFI_Error_Code_UNIMPLEMENTED,
                         "a host callback takes or returns something that is not an array, or an array of an element "
                         "type that this version does not know");
  }
  if (call.values != few) free(call.values);
  return error;
}

pwdrv_status pwdrv_host_calls_register(const PJRT_Api* api, int* code, char** message) {
  static const char* const targets[] = {"xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"};
  *code = 0;
  *message = NULL;
  const XLA_FFI_Api* of = pw_ffi_api(api);
  const char* missing = pwdrv_missing(api, of);
  if (missing) return (pwdrv_status){NULL, missing};
  const pw_ffi_handler bundle[PW_FFI_STAGES] = {NULL, NULL, NULL, pw_ffi_host_call};
  for (size_t i = 0; i < sizeof targets / sizeof *targets && *code == 0; i++) {
    XLA_FFI_Error* error = pw_ffi_register(of, targets[i], "Host", bundle, 0);
    if (error != NULL) *code = pw_ffi_take_error(of, error, message);
  }
  return (pwdrv_status){NULL, NULL};
}
