// Extensions: layouts, memories of devices that are only described, and FFI.
#include <stdio.h>
#include <stdlib.h>

#include "ffi.h"
#include "profile.h"
#include "cluster.h"

// ---- layouts: a text such as {1,0}, minor dimension first, as XLA writes it ----

// layout_text returns NULL if memory is short.
static PJRT_Layouts_MemoryLayout* layout_text(const int64_t* minor_to_major, size_t n, PJRT_Buffer_Type type) {
  size_t size = 24 * n + 32, at = 0;
  char* text = pw_alloc(size);
  if (text == NULL) return NULL;
  text[at++] = '{';
  for (size_t i = 0; i < n; i++)
    at += (size_t)snprintf(text + at, size - at, i ? ",%lld" : "%lld",
                           (long long)(minor_to_major ? minor_to_major[i] : (int64_t)(n - 1 - i)));
  int bits = pw_type_bits(type);
  if (bits > 0 && bits < 8) at += (size_t)snprintf(text + at, size - at, ":E(%d)", bits);
  text[at++] = '}';
  text[at] = 0;
  return (PJRT_Layouts_MemoryLayout*)text;
}

static PJRT_Error* no_layout(size_t n) { return pw_short("a layout", n * sizeof(int64_t)); }

static PJRT_Error* layout_destroy(PJRT_Layouts_MemoryLayout_Destroy_Args* args) {
  free(args->layout);
  return NULL;
}

static void layout_serialized(PJRT_Layouts_SerializedLayout* layout) { free(layout); }

static PJRT_Error* layout_serialize(PJRT_Layouts_MemoryLayout_Serialize_Args* args) {
  char* text = pw_copy_text((const char*)args->layout);
  if (text == NULL) return no_layout(1);
  args->serialized_bytes = text;
  args->serialized_bytes_size = strlen(text);
  args->serialized_layout = (PJRT_Layouts_SerializedLayout*)text;
  args->serialized_layout_deleter = (void*)layout_serialized;
  return NULL;
}

static PJRT_Error* client_layout(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args* args) {
  args->layout = layout_text(NULL, args->num_dims, args->type);
  return args->layout ? NULL : no_layout(args->num_dims);
}

static PJRT_Error* topology_layout(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args* args) {
  args->layout = layout_text(NULL, args->num_dims, args->type);
  return args->layout ? NULL : no_layout(args->num_dims);
}

static PJRT_Error* buffer_layout(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args* args) {
  pr_buffer* b = pr_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Layouts_PJRT_Buffer_MemoryLayout");
  args->layout = layout_text(b->minor_to_major, b->shape->num_dims, b->shape->type);
  return args->layout ? NULL : no_layout(b->shape->num_dims);
}

static void free_layouts(PJRT_Layouts_MemoryLayout** list, size_t n) {
  for (size_t i = 0; list && i < n; i++) free(list[i]);
  free(list);
}

// layouts returns those of a program's arrays; NULL if memory is short. PJRT leaves the list to its owner, which in
// other plugins is the executable, so it is kept there.
static PJRT_Layouts_MemoryLayout** layouts(const pr_array* arrays, size_t n) {
  PJRT_Layouts_MemoryLayout** list = pw_zeros(n, sizeof *list);
  for (size_t i = 0; list && i < n; i++) {
    list[i] = layout_text(arrays[i].minor_to_major, arrays[i].shape->num_dims, arrays[i].shape->type);
    if (list[i] == NULL) {
      free_layouts(list, i);
      return NULL;
    }
  }
  return list;
}

// list_once returns a list that the first call makes.
static PJRT_Error* list_once(_Atomic(void*)* kept, const pr_array* arrays, size_t n, PJRT_Layouts_MemoryLayout*** out) {
  void* have = atomic_load_explicit(kept, memory_order_acquire);
  if (have == NULL) {
    PJRT_Layouts_MemoryLayout** list = layouts(arrays, n);
    if (list == NULL) return no_layout(n);
    if (atomic_compare_exchange_strong_explicit(kept, &have, list, memory_order_acq_rel, memory_order_acquire))
      have = list;
    else free_layouts(list, n);
  }
  *out = have;
  return NULL;
}

static PJRT_Error* output_layouts(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args* args) {
  PJRT_Executable* x = args->executable;
  args->num_outputs = x->num_outputs;
  return list_once(&x->output_layouts, x->outputs, x->num_outputs, (PJRT_Layouts_MemoryLayout***)&args->layouts);
}

static PJRT_Error* parameter_layouts(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args* args) {
  PJRT_Executable* x = args->executable;
  args->num_parameters = x->num_params;
  return list_once(&x->param_layouts, x->params, x->num_params, (PJRT_Layouts_MemoryLayout***)&args->layouts);
}

static PJRT_Layouts_Extension layouts_extension = {
    .base = {.struct_size = PJRT_Layouts_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_Layouts},
    .PJRT_Layouts_MemoryLayout_Destroy = (void*)layout_destroy,
    .PJRT_Layouts_MemoryLayout_Serialize = (void*)layout_serialize,
    .PJRT_Layouts_PJRT_Client_GetDefaultLayout = (void*)client_layout,
    .PJRT_Layouts_PJRT_Buffer_MemoryLayout = (void*)buffer_layout,
    .PJRT_Layouts_PJRT_Topology_GetDefaultLayout = (void*)topology_layout,
    .PJRT_Layouts_PJRT_Executable_GetOutputLayouts = (void*)output_layouts,
    .PJRT_Layouts_PJRT_Executable_GetParameterLayouts = (void*)parameter_layouts,
};

// ---- memories of descriptions ----

static PJRT_Error* device_memories(PJRT_DeviceDescription_MemoryDescriptions_Args* args) {
  PJRT_DeviceDescription* d = args->device_description;
  args->memory_descriptions = (const PJRT_MemoryDescription* const*)d->memories;
  args->num_memory_descriptions = d->num_memories;
  args->default_memory_index = d->default_memory;
  return NULL;
}

static PJRT_Error* memory_kind(PJRT_MemoryDescription_Kind_Args* args) {
  const pr_memory* m = (const pr_memory*)args->memory_description;
  args->kind = m->kind;
  args->kind_size = strlen(m->kind);
  args->kind_id = m->kind_id;
  return NULL;
}

static PJRT_MemoryDescriptions_Extension memories_extension = {
    .base = {.struct_size = PJRT_MemoryDescriptions_Extension_STRUCT_SIZE,
             .type = PJRT_Extension_Type_MemoryDescriptions},
    .PJRT_DeviceDescription_MemoryDescriptions = (void*)device_memories,
    .PJRT_MemoryDescription_Kind = (void*)memory_kind,
};

// ---- FFI and execute contexts ----

// A context keeps what host callbacks need.
struct PJRT_ExecuteContext {
  PJRT_FFI_UserData* data;
  size_t num_data;
};

PJRT_Error* pr_PJRT_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args* args) {
  args->context = pw_zeros(1, sizeof *args->context);
  return args->context ? NULL : pw_short("the context of a run", sizeof *args->context);
}

PJRT_Error* pr_PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args) {
  if (args->context) free(args->context->data);
  free(args->context);
  return NULL;
}

PJRT_ExecuteContext* pr_context_keep(PJRT_ExecuteContext* context, void** functions) {
  const void* from = pr_context_functions(context);
  if (from == NULL) return NULL;
  PJRT_ExecuteContext* c = pw_zeros(1, sizeof *c);
  PJRT_FFI_UserData* data = c ? pw_zeros(1, sizeof *data) : NULL;
  *functions = data ? pw_ffi_functions_copy(from) : NULL;
  if (*functions == NULL) {
    free(data);
    free(c);
    return NULL;
  }
  *data = (PJRT_FFI_UserData){.type_id = PW_FFI_HOST_CALLBACKS, .data = *functions};
  c->data = data;
  c->num_data = 1;
  return c;
}

static PJRT_Error* user_data_add(PJRT_FFI_UserData_Add_Args* args) {
  PJRT_ExecuteContext* c = args->context;
  PJRT_FFI_UserData* more = pw_resize(c->data, (c->num_data + 1) * sizeof *more);
  if (more == NULL) return pw_short("the context of a run", (c->num_data + 1) * sizeof *more);
  c->data = more;
  c->data[c->num_data++] = args->user_data;
  return NULL;
}

// jaxlib passes functions to every execution, even if there are none.
const void* pr_context_functions(PJRT_ExecuteContext* c) {
  for (size_t i = 0; c && i < c->num_data; i++)
    if (c->data[i].type_id == PW_FFI_HOST_CALLBACKS && pw_ffi_has_functions(c->data[i].data)) return c->data[i].data;
  return NULL;
}

static PJRT_Error* type_register(PJRT_FFI_Type_Register_Args* args) {
  (void)args;
  return pr_unimplemented("PJRT_FFI_Type_Register");
}

static PJRT_Error* register_handler(PJRT_FFI_Register_Handler_Args* args) {
  char* message = NULL;
  int code = pw_ffi_ext_register(args, &message);
  return code == 0 ? NULL : pw_error_take((PJRT_Error_Code)code, message);
}

static PJRT_FFI_Extension ffi_extension = {
    .base = {.struct_size = PJRT_FFI_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_FFI},
    .type_register = (void*)type_register,
    .user_data_add = (void*)user_data_add,
    .register_handler = (void*)register_handler,
};

PJRT_Extension_Base* pr_extensions(void) {
  layouts_extension.base.next = &memories_extension.base;
  memories_extension.base.next = &ffi_extension.base;
  ffi_extension.base.next = pw_profiler_extension();
  return &layouts_extension.base;
}
