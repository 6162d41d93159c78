#include "_cgo_export.h"
#include "call.h"

struct pwdrv_options {
  PJRT_NamedValue* values;
  size_t count, capacity;
};

pwdrv_options* pwdrv_options_new(size_t capacity) {
  pwdrv_options* o = pwdrv_alloc(sizeof *o);
  if (o == NULL) return NULL;
  o->values = pwdrv_alloc(capacity * sizeof *o->values);
  if (o->values == NULL) {
    free(o);
    return NULL;
  }
  o->capacity = capacity;
  return o;
}

// add returns NULL if memory is short.
static PJRT_NamedValue* add(pwdrv_options* o, const char* name, size_t name_size, PJRT_NamedValue_Type type) {
  if (o->count == o->capacity) abort();  // the only caller counts its options first
  PJRT_NamedValue* v = &o->values[o->count++];
  v->struct_size = PJRT_NamedValue_STRUCT_SIZE;
  v->name = pwdrv_copy(name, name_size);
  v->name_size = name_size;
  v->type = type;
  v->value_size = 1;
  return v->name ? v : NULL;
}

bool pwdrv_options_string(pwdrv_options* o, const char* name, size_t name_size, const char* value, size_t size) {
  PJRT_NamedValue* v = add(o, name, name_size, PJRT_NamedValue_kString);
  if (v == NULL) return false;
  v->value_size = size;
  return (v->string_value = pwdrv_copy(value, size)) != NULL;
}

bool pwdrv_options_int(pwdrv_options* o, const char* name, size_t name_size, int64_t value) {
  PJRT_NamedValue* v = add(o, name, name_size, PJRT_NamedValue_kInt64);
  if (v) v->int64_value = value;
  return v != NULL;
}

bool pwdrv_options_ints(pwdrv_options* o, const char* name, size_t name_size, const int64_t* value, size_t count) {
  PJRT_NamedValue* v = add(o, name, name_size, PJRT_NamedValue_kInt64List);
  if (v == NULL) return false;
  v->value_size = count;
  return (v->int64_array_value = pwdrv_copy(value, count * sizeof *value)) != NULL;
}

bool pwdrv_options_float(pwdrv_options* o, const char* name, size_t name_size, float value) {
  PJRT_NamedValue* v = add(o, name, name_size, PJRT_NamedValue_kFloat);
  if (v) v->float_value = value;
  return v != NULL;
}

bool pwdrv_options_bool(pwdrv_options* o, const char* name, size_t name_size, bool value) {
  PJRT_NamedValue* v = add(o, name, name_size, PJRT_NamedValue_kBool);
  if (v) v->bool_value = value;
  return v != NULL;
}

void pwdrv_options_free(pwdrv_options* o) {
  for (size_t i = 0; i < o->count; i++) {
    PJRT_NamedValue* v = &o->values[i];
    free((void*)v->name);
    if (v->type == PJRT_NamedValue_kString) free((void*)v->string_value);
    if (v->type == PJRT_NamedValue_kInt64List) free((void*)v->int64_array_value);
  }
  free(o->values);
  free(o);
}

static void free_value(char* value) { free(value); }

static PJRT_Error* store_get(PJRT_KeyValueGetCallback_Args* args) {
  args->value_deleter_callback = (void*)free_value;
  return pathwaysDriverStoreGet((uintptr_t)args->user_arg, (char*)args->key, args->key_size, args->timeout_in_ms,
                                args->callback_error, &args->value, &args->value_size);
}

static PJRT_Error* store_put(PJRT_KeyValuePutCallback_Args* args) {
  return pathwaysDriverStorePut((uintptr_t)args->user_arg, (char*)args->key, args->key_size, (char*)args->value,
                                args->value_size, args->callback_error);
}

static PJRT_Error* store_try_get(PJRT_KeyValueTryGetCallback_Args* args) {
  args->value_deleter_callback = (void*)free_value;
  return pathwaysDriverStoreGet((uintptr_t)args->user_arg, (char*)args->key, args->key_size, -1, args->callback_error,
                                &args->value, &args->value_size);
}

pwdrv_store pwdrv_go_store(uintptr_t handle) {
  return (pwdrv_store){(void*)store_get, (void*)handle, (void*)store_put, (void*)handle, (void*)store_try_get,
                       (void*)handle};
}

PJRT_Error* pwdrv_make_error(PJRT_CallbackError* make, int code, const char* message, size_t size) {
  // The field points to a function pointer.
  typedef PJRT_Error* (*maker)(PJRT_Error_Code, const char*, size_t);
  return (*(maker*)make)((PJRT_Error_Code)code, message, size);
}

pwdrv_status pwdrv_client_create(const PJRT_Api* api, pwdrv_options* o, pwdrv_store store, PJRT_Client** out) {
  PWDRV_ARGS(PJRT_Client_Create);
  args.create_options = o->values;
  args.num_options = o->count;
  args.kv_get_callback = store.get;
  args.kv_get_user_arg = store.get_arg;
  args.kv_put_callback = store.put;
  args.kv_put_user_arg = store.put_arg;
  args.kv_try_get_callback = store.try_get;
  args.kv_try_get_user_arg = store.try_get_arg;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Client_Create);
  PWDRV_MADE(clients, *out = args.client);
  return status;
}

pwdrv_status pwdrv_client_destroy(const PJRT_Api* api, PJRT_Client* client) {
  PWDRV_COUNT(clients, -1);
  PWDRV_DO(PJRT_Client_Destroy, args.client = client);
}

pwdrv_status pwdrv_client_platform(const PJRT_Api* api, PJRT_Client* client, pwdrv_bytes* name, pwdrv_bytes* version) {
  PWDRV_STEP(PJRT_Client_PlatformName, args.client = client,
             *name = (pwdrv_bytes){args.platform_name, args.platform_name_size});
  PWDRV_DO(PJRT_Client_PlatformVersion, args.client = client,
           *version = (pwdrv_bytes){args.platform_version, args.platform_version_size});
}

pwdrv_status pwdrv_client_devices(const PJRT_Api* api, PJRT_Client* client, PJRT_Device* const** out, size_t* count) {
  PWDRV_DO(PJRT_Client_AddressableDevices, args.client = client,
           *out = args.addressable_devices; *count = args.num_addressable_devices);
}

pwdrv_status pwdrv_device_describe(const PJRT_Api* api, PJRT_Device* device, int* id, pwdrv_bytes* kind) {
  PJRT_DeviceDescription* description;
  PWDRV_STEP(PJRT_Device_GetDescription, args.device = device, description = args.device_description);
  PWDRV_STEP(PJRT_DeviceDescription_Id, args.device_description = description, *id = args.id);
  PWDRV_DO(PJRT_DeviceDescription_Kind, args.device_description = description,
           *kind = (pwdrv_bytes){args.device_kind, args.device_kind_size});
}

pwdrv_status pwdrv_device_attributes(const PJRT_Api* api, PJRT_Device* device, const PJRT_NamedValue** out,
                                     size_t* count) {
  PJRT_DeviceDescription* description;
  PWDRV_STEP(PJRT_Device_GetDescription, args.device = device, description = args.device_description);
  PWDRV_DO(PJRT_DeviceDescription_Attributes, args.device_description = description,
           *out = args.attributes; *count = args.num_attributes);
}

pwdrv_status pwdrv_device_memories(const PJRT_Api* api, PJRT_Device* device, PJRT_Memory* const** out, size_t* count,
                                   PJRT_Memory** fallback) {
  PWDRV_STEP(PJRT_Device_AddressableMemories, args.device = device, *out = args.memories; *count = args.num_memories);
  PWDRV_DO(PJRT_Device_DefaultMemory, args.device = device, *fallback = args.memory);
}

pwdrv_status pwdrv_memory_describe(const PJRT_Api* api, PJRT_Memory* memory, int* id, pwdrv_bytes* kind,
                                    pwdrv_bytes* text, pwdrv_bytes* debug) {
  PWDRV_STEP(PJRT_Memory_ToString, args.memory = memory, *text = (pwdrv_bytes){args.to_string, args.to_string_size});
  PWDRV_STEP(PJRT_Memory_DebugString, args.memory = memory,
             *debug = (pwdrv_bytes){args.debug_string, args.debug_string_size});
  PWDRV_STEP(PJRT_Memory_Id, args.memory = memory, *id = args.id);
  PWDRV_DO(PJRT_Memory_Kind, args.memory = memory, *kind = (pwdrv_bytes){args.kind, args.kind_size});
}

pwdrv_status pwdrv_device_stats(const PJRT_Api* api, PJRT_Device* device, int64_t* in_use, int64_t* limit) {
  PWDRV_DO(PJRT_Device_MemoryStats, args.device = device,
           *in_use = args.bytes_in_use;
           *limit = args.bytes_limit_is_set ? args.bytes_limit : -1);
}

pwdrv_status pwdrv_dma_map(const PJRT_Api* api, PJRT_Client* client, void* data, size_t size) {
  PWDRV_DO(PJRT_Client_DmaMap, args.client = client; args.data = data; args.size = size, );
}

pwdrv_status pwdrv_dma_unmap(const PJRT_Api* api, PJRT_Client* client, void* data) {
  PWDRV_DO(PJRT_Client_DmaUnmap, args.client = client; args.data = data, );
}
