#include <stdlib.h>

#include "door.h"
#include "ffi.h"

// The plugin's own extensions, kept to call what ours unwrap for.
static PJRT_Layouts_Extension* layouts;

typedef PJRT_Error* (*client_layout)(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args*);
typedef PJRT_Error* (*buffer_layout)(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args*);

static PJRT_Error* default_layout(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args* args) {
  PJRT_Client* client = args->client;
  args->client = client->under;
  PJRT_Error* err = ((client_layout)layouts->PJRT_Layouts_PJRT_Client_GetDefaultLayout)(args);
  args->client = client;
  return err;
}

static PJRT_Error* memory_layout(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args* args) {
  PJRT_Buffer* handle = args->buffer;
  pw_buffer* b = pw_buffer_of(handle);
  if (b == NULL) return pw_buffer_gone("PJRT_Layouts_PJRT_Buffer_MemoryLayout");
  args->buffer = b->under;
  PJRT_Error* err = ((buffer_layout)layouts->PJRT_Layouts_PJRT_Buffer_MemoryLayout)(args);
  args->buffer = handle;
  return err;
}

static PJRT_Error* register_handler(PJRT_FFI_Register_Handler_Args* args) {
  char* message = NULL;
  int code = pw_ffi_ext_register(args, &message);
  return code == 0 ? NULL : pw_error_take((PJRT_Error_Code)code, message);
}

// keeps says which extensions of the plugin's are ours too: those that take no
// handle of ours, and the two that are unwrapped here.
static bool keeps(PJRT_Extension_Type type) {
  switch (type) {
    case PJRT_Extension_Type_Gpu_Custom_Call:
    case PJRT_Extension_Type_Profiler:
    case PJRT_Extension_Type_Custom_Partitioner:
    case PJRT_Extension_Type_Layouts:
    case PJRT_Extension_Type_FFI:
    case PJRT_Extension_Type_MemoryDescriptions:
    case PJRT_Extension_Type_Triton:
    case PJRT_Extension_Type_PhaseCompile:
    case PJRT_Extension_Type_TpuTopology:
    case PJRT_Extension_Type_Shardings:
      return true;
    default:
      return false;
  }
}

PJRT_Extension_Base* pw_extensions(void) {
  PJRT_Extension_Base *first = NULL, **last = &first;
  for (PJRT_Extension_Base* x = pw_under->extension_start; x; x = x->next) {
    if (!keeps(x->type)) continue;
    // A copy as long as the plugin's, so that fields newer than this build pass.
    PJRT_Extension_Base* y = calloc(1, x->struct_size < sizeof *y ? sizeof *y : x->struct_size);
    memcpy(y, x, x->struct_size);
    y->next = NULL;
    if (x->type == PJRT_Extension_Type_Layouts) {
      layouts = (PJRT_Layouts_Extension*)x;
      ((PJRT_Layouts_Extension*)y)->PJRT_Layouts_PJRT_Client_GetDefaultLayout = (void*)default_layout;
      ((PJRT_Layouts_Extension*)y)->PJRT_Layouts_PJRT_Buffer_MemoryLayout = (void*)memory_layout;
    } else if (x->type == PJRT_Extension_Type_FFI) {
      ((PJRT_FFI_Extension*)y)->register_handler = (void*)register_handler;
    }
    *last = y;
    last = &y->next;
  }
  return first;
}
