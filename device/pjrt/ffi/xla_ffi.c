#include "xla_ffi.h"

#include <stdlib.h>
#include <string.h>

const PJRT_FFI_Extension* pw_ffi_extension(const PJRT_Api* plugin) {
  for (PJRT_Extension_Base* e = plugin->extension_start; e != NULL; e = e->next)
    if (e->type == PJRT_Extension_Type_FFI && e->struct_size >= PJRT_FFI_Extension_STRUCT_SIZE)
      return (const PJRT_FFI_Extension*)e;
  return NULL;
}

// --- errors ---

XLA_FFI_Error* pw_ffi_error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                    .message = (void*)(text ? text : "out of memory for the error's text"),
                                    .errc = code};
  XLA_FFI_Error* (*create)(XLA_FFI_Error_Create_Args*) = api->XLA_FFI_Error_Create;
  return create(&args);
}

int pw_ffi_take_error(const XLA_FFI_Api* api, XLA_FFI_Error* error, char** message) {
  // XLA FFI 0.4 appended the code to this call; older versions leave it alone.
  struct {
    XLA_FFI_Error_GetMessage_Args base;
    uint32_t errc;
  } details = {.base = {.struct_size = sizeof(XLA_FFI_Error_GetMessage_Args) + sizeof(uint32_t), .error = error},
               .errc = XLA_FFI_Error_Code_UNKNOWN};
  void (*get)(void*) = api->XLA_FFI_Error_GetMessage;
  get(&details);
  *message = strdup(details.base.message ? details.base.message : "");  // NULL: no memory, and the code has to do
  XLA_FFI_Error_Destroy_Args destroy_args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  void (*destroy)(XLA_FFI_Error_Destroy_Args*) = api->XLA_FFI_Error_Destroy;
  destroy(&destroy_args);
  return (int)details.errc;
}

// --- probes ---

XLA_FFI_Metadata* pw_ffi_probe_of(const XLA_FFI_CallFrame* frame) {
  for (XLA_FFI_Extension_Base* e = frame->extension_start; e != NULL; e = e->next)
    if (e->type == XLA_FFI_Extension_Metadata) return ((XLA_FFI_Metadata_Extension*)e)->metadata;
  return NULL;
}

bool pw_ffi_answer_probe(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Metadata* metadata = pw_ffi_probe_of(frame);
  if (metadata == NULL) return false;
  const XLA_FFI_Api* api = frame->api;
  metadata->api_version = (XLA_FFI_Api_Version){.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE,
                                                .major_version = api->api_version.major_version,
                                                .minor_version = api->api_version.minor_version};
  return true;
}

static _Thread_local const XLA_FFI_Api* seen_api;

static XLA_FFI_Error* probe(XLA_FFI_CallFrame* frame) {
  seen_api = frame->api;
  if (pw_ffi_answer_probe(frame)) return NULL;
  return pw_ffi_error(frame->api, XLA_FFI_Error_Code_UNIMPLEMENTED, "pathways: this target is not to be called");
}

static void destroy_error(const PJRT_Api* of, PJRT_Error* error) {
  PJRT_Error_Destroy_Args args = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  of->PJRT_Error_Destroy(&args);
}

// It probes a handler, on this thread, while it registers it.
const XLA_FFI_Api* pw_ffi_api(const PJRT_Api* plugin) {
  const PJRT_FFI_Extension* extension = pw_ffi_extension(plugin);
  if (extension == NULL) return NULL;
  static const char name[] = "pathways_ffi_probe", platform[] = "Host";
  PJRT_FFI_Register_Handler_Args args = {.struct_size = PJRT_FFI_Register_Handler_Args_STRUCT_SIZE,
                                         .target_name = name,
                                         .target_name_size = sizeof(name) - 1,
                                         .handler = probe,
                                         .platform_name = platform,
                                         .platform_name_size = sizeof(platform) - 1};
  PJRT_Error* (*call)(PJRT_FFI_Register_Handler_Args*) = extension->register_handler;
  seen_api = NULL;
  PJRT_Error* error = call(&args);
  if (error != NULL) destroy_error(plugin, error);
  return seen_api;
}

// --- registering ---

// The handler bundle grew a fifth stage (record) in XLA FFI 0.5.
typedef struct {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ByteSpan name;
  XLA_FFI_ByteSpan platform;
  void* bundle[5];
  uint32_t traits;
} register_args_0_5;

XLA_FFI_Error* pw_ffi_register(const XLA_FFI_Api* api, const char* name, const char* platform,
                               const pw_ffi_handler bundle[PW_FFI_STAGES], uint32_t traits) {
  XLA_FFI_ByteSpan name_span = {(void*)name, strlen(name)}, platform_span = {(void*)platform, strlen(platform)};
  XLA_FFI_Handler_Register_Args args = {.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE,
                                        .name = name_span,
                                        .platform = platform_span,
                                        .bundle = {bundle[0], bundle[1], bundle[2], bundle[3]},
                                        .traits = traits};
  register_args_0_5 newer = {.struct_size = offsetof(register_args_0_5, traits) + sizeof(uint32_t),
                             .name = name_span,
                             .platform = platform_span,
                             .bundle = {bundle[0], bundle[1], bundle[2], bundle[3], NULL},
                             .traits = traits};
  XLA_FFI_Error* (*call)(void*) = api->XLA_FFI_Handler_Register;
  return call(api->api_version.minor_version >= 5 ? (void*)&newer : (void*)&args);
}
