#include <stdlib.h>

#include "embedded.h"
#include "ffi.h"
#include "profile.h"

// The plugin's own extensions, which ours call after unwrapping handles.
static PJRT_Layouts_Extension* layouts;
static PJRT_Stream_Extension* streams;

typedef PJRT_Error* (*client_layout)(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args*);
typedef PJRT_Error* (*user_data)(PJRT_FFI_UserData_Add_Args*);
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
  if (b->under == NULL) {  // results that can be handed out before they are made have the default layout
    PW_ARGS(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args, a);
    a.client = b->device->client;
    a.type = b->shape->type;
    a.dims = b->shape->dims;
    a.num_dims = b->shape->num_dims;
    PJRT_Error* err = default_layout(&a);
    args->layout = a.layout;
    return err;
  }
  args->buffer = b->under;
  PJRT_Error* err = ((buffer_layout)layouts->PJRT_Layouts_PJRT_Buffer_MemoryLayout)(args);
  args->buffer = handle;
  return err;
}

// Streams are CUDA's: who shares an array by DLPack reads it in the order of a stream.
static PJRT_Error* get_stream(PJRT_Get_Stream_For_External_Ready_Events_Args* args) {
  PJRT_Device* device = args->device;
  args->device = device->under;
  PJRT_Error* err = ((PJRT_Error * (*)(PJRT_Get_Stream_For_External_Ready_Events_Args*)) streams->get_stream)(args);
  args->device = device;
  return err;
}

static PJRT_Error* wait_stream(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args* args) {
  return pw_buffer_wait_on_stream(args, (pw_wait_on_stream)(void*)streams->wait_stream);
}

static PJRT_Error* register_handler(PJRT_FFI_Register_Handler_Args* args) {
  char* message = NULL;
  int code = pw_ffi_ext_register(args, &message);
  return code == 0 ? NULL : pw_error_take((PJRT_Error_Code)code, message);
}

// What this thread last put into a context, while it captures.
static PJRT_FFI_Extension* ffi;
static __thread struct {
  PJRT_ExecuteContext* context;
  PJRT_FFI_UserData data;
} given;

static PJRT_Error* user_data_add(PJRT_FFI_UserData_Add_Args* args) {
  if (pp_capturing) {
    given.context = args->context;
    given.data = args->user_data;
  }
  return ((user_data)ffi->user_data_add)(args);
}

PJRT_ExecuteContext* pw_context_keep(PJRT_ExecuteContext* context, void** functions) {
  if (given.context != context || given.data.type_id != PW_FFI_HOST_CALLBACKS || !pw_ffi_has_functions(given.data.data))
    return NULL;
  PW_ARGS(PJRT_ExecuteContext_Create_Args, make);
  PJRT_Error* err = pw_under->PJRT_ExecuteContext_Create(&make);
  if (err) {
    pw_error_free(err);
    return NULL;
  }
  *functions = pw_ffi_functions_copy(given.data.data);
  if (*functions == NULL) return make.context;  // no memory: the run will report that the functions are missing
  PW_ARGS(PJRT_FFI_UserData_Add_Args, add);
  add.context = make.context;
  add.user_data.type_id = given.data.type_id;
  add.user_data.data = *functions;
  if ((err = ((user_data)ffi->user_data_add)(&add))) pw_error_free(err);  // the run will report that they are missing
  return make.context;
}

// keeps reports which of the plugin's extensions are kept: those that take no handle of ours, and those that are
// unwrapped here.
static bool keeps(PJRT_Extension_Type type) {
  switch (type) {
    case PJRT_Extension_Type_Gpu_Custom_Call:
    case PJRT_Extension_Type_Profiler:
    case PJRT_Extension_Type_Custom_Partitioner:
    case PJRT_Extension_Type_Layouts:
    case PJRT_Extension_Type_Stream:
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

// descending reads a layout such as {2,1,0}, minor dimension first, and reports whether it is dense and row-major.
// Tiles and everything else come after a colon.
static bool descending(const char* text, size_t size) {
  if (size < 2 || text[0] != '{' || text[size - 1] != '}') return false;
  long last = -1;
  for (size_t i = 1; i + 1 < size;) {
    long n = 0;
    if (text[i] < '0' || text[i] > '9') return false;
    for (; text[i] >= '0' && text[i] <= '9'; i++) n = 10 * n + (text[i] - '0');
    if (last >= 0 && n != last - 1) return false;
    last = n;
    if (text[i] == ',') i++;
    else if (i + 1 < size) return false;
  }
  return last <= 0;
}

#define COVERS(x, type, field) ((x)->struct_size >= offsetof(type, field) + sizeof(void*))

bool pw_default_layouts(PJRT_Executable* executable) {
  typedef PJRT_Error* (*get_layouts)(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args*);
  typedef PJRT_Error* (*serialize)(PJRT_Layouts_MemoryLayout_Serialize_Args*);
  if (layouts == NULL ||
      !COVERS(&layouts->base, PJRT_Layouts_Extension, PJRT_Layouts_PJRT_Executable_GetOutputLayouts) ||
      layouts->PJRT_Layouts_PJRT_Executable_GetOutputLayouts == NULL)
    return false;
  PW_ARGS(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args, get);
  get.executable = executable;
  PJRT_Error* err = ((get_layouts)layouts->PJRT_Layouts_PJRT_Executable_GetOutputLayouts)(&get);
  bool all = err == NULL;
  if (err) pw_error_free(err);
  for (size_t i = 0; all && i < get.num_outputs; i++) {
    PW_ARGS(PJRT_Layouts_MemoryLayout_Serialize_Args, text);
    text.layout = get.layouts[i];
    err = ((serialize)layouts->PJRT_Layouts_MemoryLayout_Serialize)(&text);
    if (err) {
      pw_error_free(err);
      return false;
    }
    all = descending(text.serialized_bytes, text.serialized_bytes_size);
    ((void (*)(PJRT_Layouts_SerializedLayout*))text.serialized_layout_deleter)(text.serialized_layout);
  }
  return all;
}

// A plugin has one profiler, which cannot record two profiles at once. So it is left out where JAX has
// registered it already.
PJRT_Extension_Base* pw_extensions(bool profiled) {
  PJRT_Extension_Base *first = NULL, **last = &first;
  bool profiles = profiled;
  for (PJRT_Extension_Base* x = pw_under->extension_start; x; x = x->next) {
    if (!keeps(x->type) || (profiled && x->type == PJRT_Extension_Type_Profiler)) continue;
    profiles |= x->type == PJRT_Extension_Type_Profiler;
    // A copy as long as the plugin's, so that fields newer than this build pass. Layouts and Stream are cut to the
    // fields known here, since newer ones may take handles of ours.
    size_t size = x->struct_size;
    if (x->type == PJRT_Extension_Type_Layouts && size > sizeof(PJRT_Layouts_Extension))
      size = sizeof(PJRT_Layouts_Extension);
    if (x->type == PJRT_Extension_Type_Stream) {
      if (!COVERS(x, PJRT_Stream_Extension, wait_stream)) continue;
      size = sizeof(PJRT_Stream_Extension);
    }
    PJRT_Extension_Base* y = pw_zeros(1, size < sizeof *y ? sizeof *y : size);
    if (y == NULL) continue;  // the table is made once and cannot return an error: the extension is missing
    memcpy(y, x, size);
    y->struct_size = size;
    y->next = NULL;
    if (x->type == PJRT_Extension_Type_Layouts &&
        COVERS(x, PJRT_Layouts_Extension, PJRT_Layouts_PJRT_Buffer_MemoryLayout)) {
      layouts = (PJRT_Layouts_Extension*)x;
      ((PJRT_Layouts_Extension*)y)->PJRT_Layouts_PJRT_Client_GetDefaultLayout = (void*)default_layout;
      ((PJRT_Layouts_Extension*)y)->PJRT_Layouts_PJRT_Buffer_MemoryLayout = (void*)memory_layout;
    } else if (x->type == PJRT_Extension_Type_Stream) {
      streams = (PJRT_Stream_Extension*)x;
      ((PJRT_Stream_Extension*)y)->get_stream = (void*)get_stream;
      ((PJRT_Stream_Extension*)y)->wait_stream = (void*)wait_stream;
    } else if (x->type == PJRT_Extension_Type_FFI && COVERS(x, PJRT_FFI_Extension, register_handler)) {
      ffi = (PJRT_FFI_Extension*)x;
      ((PJRT_FFI_Extension*)y)->user_data_add = (void*)user_data_add;
      ((PJRT_FFI_Extension*)y)->register_handler = (void*)register_handler;
    }
    *last = y;
    last = &y->next;
  }
  if (!profiles) *last = pw_profiler_extension();  // the plugin's own shows more than ours
  return first;
}
