// The registry: which handlers and types exist, and how the plugin answered.
//
// The plugin's own PJRT_FFI_Register_Handler drops the status of a refusal, so
// registrations go through the Handler_Register of its XLA_FFI_Api.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

typedef enum { WAITING, IN_FLIGHT, REGISTERED, REFUSED } entry_state;

typedef struct entry {
  struct entry* next;
  entry_state state;
  char* name;
  char* platform;  // NULL for a type
  char* refusal;   // "CODE: text" when REFUSED
  union {
    struct {
      pw_ffi_handler bundle[PW_FFI_STAGES];
      uint32_t traits;
    };
    struct {
      int64_t* type_id;
      void* type_info;
    };
  };
} entry;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
// Guarded by mu; never held while the plugin runs.
static entry* entries;          // in order of registration
static const PJRT_Api* plugin;  // NULL until attached
static const XLA_FFI_Api* api;  // NULL when the plugin has no FFI

static const char* code_name(int code) {
  static const char* const names[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",   "NOT_FOUND",
      "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
      "UNIMPLEMENTED",  "INTERNAL",       "UNAVAILABLE",       "DATA_LOSS",          "UNAUTHENTICATED"};
  return code > 0 && code < (int)(sizeof(names) / sizeof(names[0])) ? names[code] : "UNKNOWN";
}

char* pw_ffi_status(int code, char* message) {
  if (code == 0) return NULL;
  char* text = message ? pw_text("%s: %s", code_name(code), message) : NULL;
  free(message);
  return pw_refusal(text);
}

static entry* find(const char* name, const char* platform) {
  for (entry* e = entries; e != NULL; e = e->next)
    if (strcmp(e->name, name) == 0 && (platform == NULL) == (e->platform == NULL) &&
        (platform == NULL || strcmp(e->platform, platform) == 0))
      return e;
  return NULL;
}

static entry* add(const char* name, const char* platform) {
  entry* e = pw_zeros(1, sizeof(*e));
  if (e == NULL) return NULL;
  e->name = pw_copy_text(name);
  e->platform = platform ? pw_copy_text(platform) : NULL;
  if (e->name == NULL || (platform != NULL && e->platform == NULL)) {
    free(e->name);
    free(e->platform);
    free(e);
    return NULL;
  }
  entry** last = &entries;
  while (*last != NULL) last = &(*last)->next;
  return *last = e;
}

// --- talking to the plugin (no lock held) ---

static int no_ffi(char** message) {
  *message = pw_copy_text(
      "the plugin underneath has no FFI extension, so custom calls cannot be registered with it. Use a plugin with one "
      "(PATHWAYS_PLUGIN)");
  return PJRT_Error_Code_UNIMPLEMENTED;
}

static int plugin_register(const XLA_FFI_Api* to, const char* name, const char* platform,
                           const pw_ffi_handler wrapped[PW_FFI_STAGES], uint32_t traits, char** message) {
  pw_ffi_probed = (pw_ffi_version){-1, -1};
  XLA_FFI_Error* error = pw_ffi_register(to, name, platform, wrapped, traits);
  if (error == NULL) return 0;
  char* text;
  int code = pw_ffi_take_error(to, error, &text);
  if (code == XLA_FFI_Error_Code_UNKNOWN) code = XLA_FFI_Error_Code_INVALID_ARGUMENT;
  if (pw_ffi_probed.major >= 0)
    *message = pw_text(
        "FFI handler \"%s\" for platform %s was refused by the plugin: %s. The handler was built with XLA FFI %d.%d, "
        "the plugin has %d.%d; when they do not match, rebuild the handler with the headers of a jaxlib near the "
        "plugin's age (jax.ffi.include_dir()) or use another plugin",
        name, platform, text ? text : "", pw_ffi_probed.major, pw_ffi_probed.minor, to->api_version.major_version,
        to->api_version.minor_version);
  else
    *message = pw_text("FFI handler \"%s\" for platform %s was refused by the plugin: %s", name, platform,
                       text ? text : "");
  free(text);
  return code;
}

static int plugin_register_type(const XLA_FFI_Api* to, const char* name, int64_t* type_id, void* type_info,
                                char** message) {
  XLA_FFI_Type_Register_Args args = {
      // Up to type_info: a plugin that does not know it ignores it.
      .struct_size = offsetof(XLA_FFI_Type_Register_Args, type_info) + sizeof(void*),
      .name = {(void*)name, strlen(name)},
      .type_id = type_id,
      .type_info = type_info};
  XLA_FFI_Error* (*call)(XLA_FFI_Type_Register_Args*) = to->XLA_FFI_Type_Register;
  XLA_FFI_Error* error = call(&args);
  if (error == NULL) return 0;
  char* text;
  int code = pw_ffi_take_error(to, error, &text);
  if (code == XLA_FFI_Error_Code_UNKNOWN) code = XLA_FFI_Error_Code_INVALID_ARGUMENT;
  *message = pw_text("FFI type \"%s\" was refused by the plugin: %s", name, text ? text : "");
  free(text);
  return code;
}

// --- registering ---

// Called with mu held.
static bool wrap_bundle(const entry* e, pw_ffi_handler wrapped[PW_FFI_STAGES]) {
  for (int i = 0; i < PW_FFI_STAGES; i++)
    if (e->bundle[i] == pw_ffi_host_call)
      wrapped[i] = pw_ffi_host_call;  // the driver may have registered the very same
    else if (e->bundle[i] != NULL && (wrapped[i] = pw_ffi_wrap(e->bundle[i], pw_ffi_calls_python(e->name))) == NULL)
      return false;
  return true;
}

static int no_room(const char* name, char** message) {
  *message = pw_text(
      "no room for FFI handler \"%s\": this process has registered as many different handler functions as there are "
      "trampolines (%d). Register each function once, or put fewer targets into one process",
      name, PW_FFI_SLOTS);
  return PJRT_Error_Code_RESOURCE_EXHAUSTED;
}

// Carries an entry to the plugin. Called with mu held, which it releases meanwhile; e stays, since entries are never
// removed. If another plugin is attached meanwhile, that one's answer counts.
static int carry(entry* e, char** message) {
  const PJRT_Api* of;
  int code;
  pw_refusal_free(e->refusal);
  e->refusal = NULL;
  *message = NULL;
  do {
    const XLA_FFI_Api* to = api;
    of = plugin;
    e->state = IN_FLIGHT;
    free(*message);
    *message = NULL;
    pw_ffi_handler wrapped[PW_FFI_STAGES] = {0};
    if (to == NULL) {
      code = no_ffi(message);
    } else if (e->platform != NULL && !wrap_bundle(e, wrapped)) {
      code = no_room(e->name, message);
    } else {
      pthread_mutex_unlock(&mu);
      code = e->platform == NULL ? plugin_register_type(to, e->name, e->type_id, e->type_info, message)
                                 : plugin_register(to, e->name, e->platform, wrapped, e->traits, message);
      pthread_mutex_lock(&mu);
    }
  } while (plugin != of);
  e->state = code == 0 ? REGISTERED : REFUSED;
  return code;
}

static int already_exists(const char* what, const char* name, char** message) {
  *message = pw_text(
      "FFI %s \"%s\" is already registered with other functions, and a target cannot be replaced. Use another name, or "
      "start a new process",
      what, name);
  return PJRT_Error_Code_ALREADY_EXISTS;
}

// Called with mu held: decides what to do for an entry that already has these functions.
static int settle(entry* e, char** message) {
  if (e->state == REGISTERED || plugin == NULL) return 0;
  return carry(e, message);
}

int pw_ffi_register_bundle(const char* name, const char* platform, const pw_ffi_handler bundle[PW_FFI_STAGES],
                           uint32_t traits, char** message) {
  if (bundle[PW_FFI_STAGES - 1] == NULL) {
    *message = pw_text("FFI handler \"%s\" has no execute function; every target needs one", name);
    return PJRT_Error_Code_INVALID_ARGUMENT;
  }
  pthread_mutex_lock(&mu);
  entry* e = find(name, platform);
  int code = 0;
  // A refused registration leaves its name free.
  bool fresh = e == NULL || e->state == REFUSED;
  if (e == NULL) e = add(name, platform);
  if (e == NULL) {
    *message = NULL;
    code = PJRT_Error_Code_RESOURCE_EXHAUSTED;
  } else if (!fresh && (memcmp(e->bundle, bundle, sizeof(e->bundle)) != 0 || e->traits != traits)) {
    code = already_exists("target", name, message);
  } else {
    memcpy(e->bundle, bundle, sizeof(e->bundle));
    e->traits = traits;
    code = settle(e, message);
  }
  pthread_mutex_unlock(&mu);
  return code;
}

int pw_ffi_register_type(const char* name, int64_t* type_id, void* type_info, char** message) {
  pthread_mutex_lock(&mu);
  entry* e = find(name, NULL);
  int code = 0;
  bool fresh = e == NULL || e->state == REFUSED;
  if (e == NULL) e = add(name, NULL);
  if (e == NULL) {
    *message = NULL;
    code = PJRT_Error_Code_RESOURCE_EXHAUSTED;
  } else if (!fresh && e->type_id != type_id) {
    code = already_exists("type", name, message);
  } else {
    e->type_id = type_id;
    e->type_info = type_info;
    code = settle(e, message);
  }
  pthread_mutex_unlock(&mu);
  return code;
}

char* pathways_ffi_register(const char* name, const char* platform, void* instantiate, void* prepare, void* initialize,
                            void* execute, uint32_t traits) {
  const pw_ffi_handler bundle[PW_FFI_STAGES] = {instantiate, prepare, initialize, execute};
  char* message = NULL;
  int code = pw_ffi_register_bundle(name, platform, bundle, traits, &message);
  return pw_ffi_status(code, message);
}

char* pathways_ffi_register_type(const char* name, int64_t* type_id, void* type_info) {
  char* message = NULL;
  int code = pw_ffi_register_type(name, type_id, type_info, &message);
  return pw_ffi_status(code, message);
}

char* pathways_ffi_refusals(void) {
  char* all = NULL;
  pthread_mutex_lock(&mu);
  for (entry* e = entries; e != NULL; e = e->next) {
    if (e->refusal == NULL) continue;
    char* longer = pw_text("%s%s%s", all ? all : "", all ? "\n" : "", e->refusal);
    free(all);
    all = longer;
    if (all == NULL) {
      all = pw_refusal(NULL);
      break;
    }
  }
  pthread_mutex_unlock(&mu);
  return all;
}

char* pathways_ffi_version(void) {
  pthread_mutex_lock(&mu);
  char* text =
      api ? pw_text("%d.%d", api->api_version.major_version, api->api_version.minor_version) : NULL;
  pthread_mutex_unlock(&mu);
  return text;
}

bool pw_ffi_entry_at(size_t i, pw_ffi_entry* out) {
  pthread_mutex_lock(&mu);
  entry* e = entries;
  while (e != NULL && i-- > 0) e = e->next;
  if (e != NULL) {
    *out = (pw_ffi_entry){.name = e->name, .platform = e->platform};
    if (e->platform == NULL) {
      out->stages[0] = e->type_id;
      out->stages[1] = e->type_info;
    } else {
      for (int s = 0; s < PW_FFI_STAGES; s++) out->stages[s] = (const void*)e->bundle[s];
      out->traits = e->traits;
    }
  }
  pthread_mutex_unlock(&mu);
  return e != NULL;
}

bool pw_ffi_has(const char* name, const char* platform) {
  pthread_mutex_lock(&mu);
  entry* e = find(name, platform);
  bool has = e != NULL && e->state != REFUSED;
  pthread_mutex_unlock(&mu);
  return has;
}

char* pw_ffi_serve_local(pw_ffi_handler handler) {
  char* message = NULL;
  pthread_mutex_lock(&mu);
  pw_ffi_handler wrapped = pw_ffi_wrap(handler, true);
  pthread_mutex_unlock(&mu);
  if (wrapped == NULL) return pw_ffi_status(no_room("xla_ffi_python_cpu_callback", &message), message);
  pw_ffi_host_call_local(wrapped);
  return NULL;
}

// --- attaching ---

void pw_ffi_attach(const PJRT_Api* to) {
  const XLA_FFI_Api* learned = pw_ffi_api(to);
  pthread_mutex_lock(&mu);
  if (plugin != to) {
    plugin = to;
    api = learned;
    for (entry* e = entries; e != NULL; e = e->next)
      if (e->state != IN_FLIGHT) e->state = WAITING;
  }
  for (entry* e = entries; e != NULL; e = e->next) {
    if (e->state != WAITING) continue;
    char* message = NULL;
    int code = carry(e, &message);
    e->refusal = pw_ffi_status(code, message);
  }
  pthread_mutex_unlock(&mu);
}

// --- the frontends' FFI extension ---

static int bad_size(const char* what, size_t got, size_t want, char** message) {
  *message = pw_text("%s: struct_size is %zu, expected at least %zu", what, got, want);
  return PJRT_Error_Code_INVALID_ARGUMENT;
}

int pw_ffi_ext_register(const PJRT_FFI_Register_Handler_Args* args, char** message) {
  const size_t want = offsetof(PJRT_FFI_Register_Handler_Args, traits);
  *message = NULL;
  if (args->struct_size < want) return bad_size("PJRT_FFI_Register_Handler_Args", args->struct_size, want, message);
  uint32_t traits = args->struct_size >= PJRT_FFI_Register_Handler_Args_STRUCT_SIZE ? args->traits : 0;
  char* name = pw_copy(args->target_name, args->target_name_size);
  char* platform = pw_copy(args->platform_name, args->platform_name_size);
  int code = PJRT_Error_Code_RESOURCE_EXHAUSTED;
  if (name != NULL && platform != NULL) {
    const pw_ffi_handler bundle[PW_FFI_STAGES] = {NULL, NULL, NULL, args->handler};
    code = pw_ffi_register_bundle(name, platform, bundle, traits, message);
  }
  free(name);
  free(platform);
  return code;
}
