// The C side of device/pjrt: one function a slot of the PJRT table, taking plain
// arguments. Each builds its zeroed args struct on the C stack, checks that the
// plugin's table has the slot, and calls it. No function keeps a pointer into Go
// memory after it returns unless its comment says so.
#ifndef PATHWAYS_DEVICE_PJRT_DRIVER_H_
#define PATHWAYS_DEVICE_PJRT_DRIVER_H_

#include <stdlib.h>

#include "pjrt_abi.h"

// What a call gave. At most one field is set. The caller owns error and gives it
// to pwdrv_error_destroy; missing is the name of a slot that the plugin lacks
// and lives for ever.
typedef struct {
  PJRT_Error* error;
  const char* missing;
} pwdrv_status;

// Bytes owned by someone else; how long they live stands where they are given.
typedef struct {
  const char* data;
  size_t size;
} pwdrv_bytes;

#define PWDRV_HAS(api, slot) \
  ((api)->struct_size >= offsetof(PJRT_Api, slot) + sizeof((api)->slot) && (api)->slot != NULL)

// Errors. The message lives until the error is destroyed.
void pwdrv_error_read(const PJRT_Api* api, PJRT_Error* error, int* code, pwdrv_bytes* message);
void pwdrv_error_destroy(const PJRT_Api* api, PJRT_Error* error);

// Plugin. A library that was opened is never closed: XLA does not support it.
// On failure reason holds a sentence, cut to its size, and NULL is returned.
void* pwdrv_open(const char* path, char* reason, size_t reason_size);
const PJRT_Api* pwdrv_table(void* library, char* reason, size_t reason_size);
const char* pwdrv_self(void);  // path of the object this code is linked into, or NULL
int pwdrv_loads(const char* name);  // whether dlopen finds a library of this name
int pwdrv_has_extension(const PJRT_Api* api, int type);
pwdrv_status pwdrv_initialize(const PJRT_Api* api);
pwdrv_status pwdrv_attributes(const PJRT_Api* api, const PJRT_NamedValue** values, size_t* count);

// Named values. The getters read one of an array that the plugin owns.
const PJRT_NamedValue* pwdrv_named_at(const PJRT_NamedValue* values, size_t i);
pwdrv_bytes pwdrv_named_string(const PJRT_NamedValue* v);
int64_t pwdrv_named_int(const PJRT_NamedValue* v);
const int64_t* pwdrv_named_ints(const PJRT_NamedValue* v);
float pwdrv_named_float(const PJRT_NamedValue* v);
bool pwdrv_named_bool(const PJRT_NamedValue* v);

// An array of options in C memory, with everything they point to. add copies
// what it is given; an allocation that fails aborts, as in Go.
typedef struct pwdrv_options pwdrv_options;
pwdrv_options* pwdrv_options_new(size_t capacity);
void pwdrv_options_string(pwdrv_options* o, const char* name, size_t name_size, const char* value, size_t size);
void pwdrv_options_int(pwdrv_options* o, const char* name, size_t name_size, int64_t value);
void pwdrv_options_ints(pwdrv_options* o, const char* name, size_t name_size, const int64_t* value, size_t count);
void pwdrv_options_float(pwdrv_options* o, const char* name, size_t name_size, float value);
void pwdrv_options_bool(pwdrv_options* o, const char* name, size_t name_size, bool value);
void pwdrv_options_free(pwdrv_options* o);

// Callbacks of the rendezvous store with their user arguments, as the plugin
// takes them. All NULL where there is no store. The plugin keeps them for the
// client's life.
typedef struct {
  void *get, *get_arg, *put, *put_arg, *try_get, *try_get_arg;
} pwdrv_store;
pwdrv_store pwdrv_go_store(uintptr_t handle);  // callbacks into Go
PJRT_Error* pwdrv_make_error(PJRT_CallbackError* make, int code, const char* message, size_t size);

// Client.
pwdrv_status pwdrv_client_create(const PJRT_Api* api, pwdrv_options* o, pwdrv_store store, PJRT_Client** out);
pwdrv_status pwdrv_client_destroy(const PJRT_Api* api, PJRT_Client* client);
pwdrv_status pwdrv_client_platform(const PJRT_Api* api, PJRT_Client* client, pwdrv_bytes* name, pwdrv_bytes* version);
pwdrv_status pwdrv_client_devices(const PJRT_Api* api, PJRT_Client* client, PJRT_Device* const** out, size_t* count);
pwdrv_status pwdrv_device_describe(const PJRT_Api* api, PJRT_Device* device, int* id, pwdrv_bytes* kind);
pwdrv_status pwdrv_device_memories(const PJRT_Api* api, PJRT_Device* device, PJRT_Memory* const** out, size_t* count,
                                   PJRT_Memory** fallback);
pwdrv_status pwdrv_memory_describe(const PJRT_Api* api, PJRT_Memory* memory, int* id, pwdrv_bytes* kind);
// in_use, peak and limit are -1 where the plugin does not say.
pwdrv_status pwdrv_device_stats(const PJRT_Api* api, PJRT_Device* device, int64_t* in_use, int64_t* peak,
                                int64_t* limit);

#endif  // PATHWAYS_DEVICE_PJRT_DRIVER_H_
