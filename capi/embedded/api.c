// The function table, made once from the plugin that the core found.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "embedded.h"
#include "ffi.h"

const PJRT_Api* pw_under;
pw_counters pw_count;

static PJRT_Api table;
static PJRT_Error_Code load_code;
static char* load_message;  // why there is no plugin; NULL if there is one

static void load(void) {
  int code = 0;
  PW_COUNT(go_entries, 1);
  bool profiled = false;
  pw_under = pwGoPlugin(&profiled, &code, &load_message);
  load_code = (PJRT_Error_Code)code;
  table.struct_size = PJRT_Api_STRUCT_SIZE;
  table.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  table.pjrt_api_version.minor_version = PW_ABI_MINOR;
  pw_errors_of(pw_under);
  if (pw_under) {
    if (pw_under->pjrt_api_version.minor_version < PW_ABI_MINOR)
      table.pjrt_api_version.minor_version = pw_under->pjrt_api_version.minor_version;
    table.extension_start = pw_extensions(profiled);
    pw_ffi_attach(pw_under);
  }
  pw_table_fill(&table);
}

const PJRT_Api* pw_embedded_api(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  return &table;
}

PJRT_Error* pw_load_error(void) { return load_message ? pw_error(load_code, "%s", load_message) : NULL; }

PJRT_Error* pw_PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args* args) {
  (void)args;
  return pw_load_error();
}

PJRT_Error* pw_PJRT_Client_Create(PJRT_Client_Create_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_Error* err = pw_load_error();
  if (err) return err;
  char *message = NULL, *version = NULL;
  void* under = NULL;
  uint64_t session = 0;
  pw_pass* pass = NULL;
  PW_COUNT(go_entries, 1);
  int code = pwGoClientCreate(args, &under, &session, &pass, &version, &message);
  if (code) return pw_error_take((PJRT_Error_Code)code, message);
  if ((err = pw_client_new(under, session, pass, version, &args->client))) {
    free(version);
    PW_COUNT(go_entries, 1);
    pwGoClientDestroy(session);
    return err;
  }
  for (size_t i = 0; i < args->client->num_addressable; i++) {
    pw_account* a = &args->client->addressable[i]->account;
    PW_COUNT(go_entries, 1);
    pwGoMemory(session, (int32_t)i, &a->limit, &a->share, &a->host);
  }
  return NULL;
}

PJRT_Error* pw_PJRT_Client_Destroy(PJRT_Client_Destroy_Args* args) {
  if (args->client == NULL || pw_forked) return NULL;
  uint64_t session = args->client->session;
  PW_COUNT(go_entries, 1);
  pp_client_ended(args->client);
  pw_export_end(args->client);
  pwGoClientDestroy(session);  // ends runs that wait, which need the client
  pw_client_free(args->client);
  return NULL;
}

PJRT_Error* pw_PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_Device* d = args->device;
  args->device = d->under;
  PJRT_Error* err = pw_under->PJRT_Device_MemoryStats(args);
  args->device = d;
  if (err == NULL) {
    pw_memory_more(args, &d->account);
    return NULL;
  }
  PJRT_Error_Code code;
  const char* message;
  size_t size;
  pw_error_read(err, &code, &message, &size);
  if (code != PJRT_Error_Code_UNIMPLEMENTED || d->index < 0) return err;
  pw_error_free(err);
  pw_memory_stats(args, &d->account);  // if the plugin does not count
  return NULL;
}
