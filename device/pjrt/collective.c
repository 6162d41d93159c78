#include "handler.h"

enum { PARTS_ON_STACK = 32 };

// Written in Go. It returns an error of frame's api, or NULL; future is set if the call continues after it returns.
extern void* pathwaysDriverCollective(pwdrv_collective* call);

int pwdrv_bits(uint32_t type) {
  switch (type) {
    case XLA_FFI_DataType_C128:
      return 128;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_C64:
      return 64;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_F32:
      return 32;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
      return 16;
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
    case XLA_FFI_DataType_F8E5M2:
    case XLA_FFI_DataType_F8E4M3FN:
    case XLA_FFI_DataType_F8E4M3B11FNUZ:
    case XLA_FFI_DataType_F8E5M2FNUZ:
    case XLA_FFI_DataType_F8E4M3FNUZ:
    case XLA_FFI_DataType_F8E4M3:
    case XLA_FFI_DataType_F8E3M4:
    case XLA_FFI_DataType_F8E8M0FNU:
      return 8;
    case XLA_FFI_DataType_S4:
    case XLA_FFI_DataType_U4:
    case XLA_FFI_DataType_F4E2M1FN:
      return 4;
    case XLA_FFI_DataType_S2:
    case XLA_FFI_DataType_U2:
      return 2;
    case XLA_FFI_DataType_S1:
    case XLA_FFI_DataType_U1:
      return 1;
    case XLA_FFI_DataType_TOKEN:
      return 0;
  }
  return -1;
}

static bool read_part(int type, const XLA_FFI_Buffer* buffer, pwdrv_part* part) {
  if (type != 1) return false;  // a token
  int bits = pwdrv_bits(buffer->dtype);
  if (bits <= 0) return false;
  size_t size = bits < 8 ? 1 : (size_t)bits / 8;  // narrower elements take a byte each here
  for (int64_t i = 0; i < buffer->rank; i++) size *= (size_t)((const int64_t*)buffer->dims)[i];
  *part = (pwdrv_part){buffer->data, size};
  return true;
}

static bool read_parts(const XLA_FFI_CallFrame* frame, pwdrv_part* parts) {
  for (int64_t i = 0; i < frame->args.size; i++)
    if (!read_part(((const int*)frame->args.types)[i], ((XLA_FFI_Buffer**)frame->args.args)[i], parts++)) return false;
  for (int64_t i = 0; i < frame->rets.size; i++)
    if (!read_part(((const int*)frame->rets.types)[i], ((XLA_FFI_Buffer**)frame->rets.rets)[i], parts++)) return false;
  return true;
}

static bool read_text(const XLA_FFI_Attrs* attrs, pwdrv_bytes* text) {
  if (attrs->size != 1 || ((const int*)attrs->types)[0] != XLA_FFI_AttrType_STRING) return false;
  const XLA_FFI_ByteSpan* span = ((void**)attrs->attrs)[0];
  *text = (pwdrv_bytes){span->ptr, span->len};
  return true;
}

// The type id by which an execution's context names its client: a hash of "pathways_client". Contexts accept data of
// unregistered types, and handlers of the plugin's user may have the ids that the plugin hands out.
static const int64_t CLIENT = 4499056974494770528;

static void drop(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  char* text;
  pw_ffi_take_error(api, error, &text);
  free(text);
}

void* pwdrv_context_of(const XLA_FFI_Api* api, void* ctx, int64_t type) {
  XLA_FFI_TypeId type_id = {type};
  XLA_FFI_ExecutionContext_Get_Args args = {
      .struct_size = XLA_FFI_ExecutionContext_Get_Args_STRUCT_SIZE, .ctx = ctx, .type_id = &type_id};
  XLA_FFI_Error* (*get)(XLA_FFI_ExecutionContext_Get_Args*) = api->XLA_FFI_ExecutionContext_Get;
  XLA_FFI_Error* error = get(&args);
  if (error == NULL) return args.data;
  drop(api, error);
  return NULL;
}

uintptr_t pwdrv_client_of(const XLA_FFI_Api* api, void* ctx) { return (uintptr_t)pwdrv_context_of(api, ctx, CLIENT); }

XLA_FFI_Error* pwdrv_read_run(const XLA_FFI_Api* api, void* ctx, int32_t* launch, int* local) {
  XLA_FFI_DeviceOrdinal_Get_Args ordinal = {.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, .ctx = ctx};
  XLA_FFI_Error* (*get_ordinal)(XLA_FFI_DeviceOrdinal_Get_Args*) = api->XLA_FFI_DeviceOrdinal_Get;
  XLA_FFI_Error* error = get_ordinal(&ordinal);
  if (error != NULL) return error;
  XLA_FFI_RunId_Get_Args run = {.struct_size = XLA_FFI_RunId_Get_Args_STRUCT_SIZE, .ctx = ctx};
  XLA_FFI_Error* (*get_run)(XLA_FFI_RunId_Get_Args*) = api->XLA_FFI_RunId_Get;
  error = get_run(&run);
  *local = ordinal.device_ordinal;
  *launch = (int32_t)run.run_id;
  return error;
}

static XLA_FFI_Error* collective(XLA_FFI_CallFrame* frame) {
  if (pw_ffi_answer_probe(frame)) return NULL;
  const XLA_FFI_Api* api = frame->api;
  pwdrv_part few[PARTS_ON_STACK];
  pwdrv_collective call = {.api = api, .operands = (size_t)frame->args.size, .results = (size_t)frame->rets.size};
  XLA_FFI_Error* error = pwdrv_read_run(api, frame->ctx, &call.launch, &call.local);
  if (error != NULL) return error;
  call.client = pwdrv_client_of(api, frame->ctx);
  size_t count = call.operands + call.results;
  call.parts = count <= PARTS_ON_STACK ? few : pwdrv_alloc(count * sizeof(pwdrv_part));
  if (call.parts == NULL) return pw_ffi_error(api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, kNoMemory);
  if (read_parts(frame, call.parts) && read_text(&frame->attrs, &call.spec)) {
    error = pathwaysDriverCollective(&call);
    frame->future = call.future;
  } else {
    error = pw_ffi_error(api, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                         "a collective's call wants arrays, and one text that describes it");
  }
  if (call.parts != few) free(call.parts);
  return error;
}

const char* pwdrv_missing(const PJRT_Api* api, const XLA_FFI_Api* of) {
  if (of == NULL) return "FFI extension";
  if (!PW_FFI_HAS(of, XLA_FFI_Future_SetError)) return "XLA_FFI_Future_SetError";
  if (!PW_FFI_HAS(of, XLA_FFI_RunId_Get)) return "XLA_FFI_RunId_Get";
  if (!PW_FFI_HAS(of, XLA_FFI_DeviceOrdinal_Get)) return "XLA_FFI_DeviceOrdinal_Get";
  if (pw_ffi_extension(api)->user_data_add == NULL) return "PJRT_FFI_UserData_Add";
  return NULL;
}

pwdrv_status pwdrv_collectives_register(const PJRT_Api* api, const char* target, int* code, char** message) {
  *code = 0;
  *message = NULL;
  const XLA_FFI_Api* of = pw_ffi_api(api);
  const char* missing = pwdrv_missing(api, of);
  if (missing) return (pwdrv_status){NULL, missing};
  const pw_ffi_handler bundle[PW_FFI_STAGES] = {NULL, NULL, NULL, collective};
  XLA_FFI_Error* error = pw_ffi_register(of, target, "Host", bundle, 0);
  if (error != NULL) *code = pw_ffi_take_error(of, error, message);
  return (pwdrv_status){NULL, NULL};
}

pwdrv_status pwdrv_context_client(const PJRT_Api* api, PJRT_ExecuteContext* context, uintptr_t client) {
  PWDRV_ARGS(PJRT_FFI_UserData_Add);
  args.context = context;
  args.user_data = (PJRT_FFI_UserData){.type_id = CLIENT, .data = (void*)client};
  PJRT_Error* (*add)(PJRT_FFI_UserData_Add_Args*) = pw_ffi_extension(api)->user_data_add;
  return (pwdrv_status){pwdrv_counted(add(&args)), NULL};
}

void* pwdrv_future_create(const void* ffi, void** error) {
  const XLA_FFI_Api* api = ffi;
  // The plugin's struct of these arguments includes the future, although its constant for the size ends before it.
  XLA_FFI_Future_Create_Args args = {.struct_size = sizeof(XLA_FFI_Future_Create_Args)};
  XLA_FFI_Error* (*create)(XLA_FFI_Future_Create_Args*) = api->XLA_FFI_Future_Create;
  *error = create(&args);
  return args.future;
}

void* pwdrv_collective_error(const void* ffi, int code, const char* message) {
  return pw_ffi_error(ffi, (XLA_FFI_Error_Code)code, message);
}

// The rest of the program runs on the thread that ends a call. XLA's own threads treat denormal floats as zero, as
// input and as output.
#if defined(__x86_64__)
#include <xmmintrin.h>
enum { FLUSH = 1 << 15 | 1 << 6 };
static uint64_t control(void) { return _mm_getcsr(); }
static void set_control(uint64_t word) { _mm_setcsr((unsigned)word); }
#elif defined(__aarch64__)
enum { FLUSH = 1 << 24 };
static uint64_t control(void) {
  uint64_t word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
static void set_control(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
enum { FLUSH = 0 };
static uint64_t control(void) { return 0; }
static void set_control(uint64_t word) { (void)word; }
#endif

void pwdrv_future_finish(const void* ffi, void* future, int code, const char* message) {
  const XLA_FFI_Api* api = ffi;
  XLA_FFI_Error* error;
  uint64_t word = control();
  set_control(word | FLUSH);
  if (code == 0) {
    XLA_FFI_Future_SetAvailable_Args args = {.struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE,
                                             .future = future};
    XLA_FFI_Error* (*set)(XLA_FFI_Future_SetAvailable_Args*) = api->XLA_FFI_Future_SetAvailable;
    error = set(&args);
  } else {
    XLA_FFI_Future_SetError_Args args = {.struct_size = XLA_FFI_Future_SetError_Args_STRUCT_SIZE,
                                         .future = future,
                                         .error = pw_ffi_error(api, (XLA_FFI_Error_Code)code, message)};
    XLA_FFI_Error* (*set)(XLA_FFI_Future_SetError_Args*) = api->XLA_FFI_Future_SetError;
    error = set(&args);
  }
  set_control(word);
  if (error != NULL) drop(api, error);  // only if the arguments' sizes are wrong
}
