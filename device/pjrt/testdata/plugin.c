// A PJRT plugin in one file, for tests of what a plugin may do wrong. The build
// defines what it is:
//   NO_SYMBOL     no GetPjrtApi
//   NULL_TABLE    GetPjrtApi returns NULL
//   SHORT_TABLE   the table ends before its version
//   MAJOR, MINOR  the version it speaks, 0.114 by default
//   STABLEHLO     its stablehlo_current_version, as three numbers
//   BAD_START     PJRT_Plugin_Initialize fails
//   NO_CLIENT     the table ends before PJRT_Client_Create
//   EXTENSION     the type of an extension that it has
// Its client is never made: PJRT_Client_Create exchanges values over the
// rendezvous store, if there is one, and fails with an account of what it saw.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

#ifndef MAJOR
#define MAJOR 0
#define MINOR 114
#endif

struct fake_error {
  int code;
  char text[512];
};

static PJRT_Error* fail(PJRT_Error_Code code, const char* text, size_t size) {
  struct fake_error* e = calloc(1, sizeof *e);
  e->code = (int)code;
  if (size >= sizeof e->text) size = sizeof e->text - 1;
  memcpy(e->text, text, size);
  return (PJRT_Error*)e;
}

static void destroy(PJRT_Error_Destroy_Args* args) { free(args->error); }

static void message(PJRT_Error_Message_Args* args) {
  args->message = ((const struct fake_error*)args->error)->text;
  args->message_size = strlen(args->message);
}

static PJRT_Error* code(PJRT_Error_GetCode_Args* args) {
  args->code = (PJRT_Error_Code)((const struct fake_error*)args->error)->code;
  return NULL;
}

static PJRT_Error* initialize(PJRT_Plugin_Initialize_Args* args) {
#ifdef BAD_START
  return fail(PJRT_Error_Code_UNAVAILABLE, "the chips sleep", 15);
#endif
  return NULL;
}

#ifdef STABLEHLO
static const int64_t stablehlo[3] = {STABLEHLO};
#endif
static PJRT_NamedValue values[5];

static void name(PJRT_NamedValue* v, const char* text, PJRT_NamedValue_Type type) {
  v->struct_size = PJRT_NamedValue_STRUCT_SIZE;
  v->name = text;
  v->name_size = strlen(text);
  v->type = type;
  v->value_size = 1;
}

static PJRT_Error* attributes(PJRT_Plugin_Attributes_Args* args) {
  name(&values[0], "greeting", PJRT_NamedValue_kString);
  values[0].string_value = "hello";
  values[0].value_size = 5;
  name(&values[1], "answer", PJRT_NamedValue_kInt64);
  values[1].int64_value = 42;
  name(&values[2], "half", PJRT_NamedValue_kFloat);
  values[2].float_value = 0.5f;
  name(&values[3], "true", PJRT_NamedValue_kBool);
  values[3].bool_value = true;
  args->num_attributes = 4;
#ifdef STABLEHLO
  name(&values[4], "stablehlo_current_version", PJRT_NamedValue_kInt64List);
  values[4].int64_array_value = stablehlo;
  values[4].value_size = 3;
  args->num_attributes = 5;
#endif
  args->attributes = values;
  return NULL;
}

typedef PJRT_Error* (*maker)(PJRT_Error_Code, const char*, size_t);
static maker make = fail;

static const char* took(PJRT_Error* error) {
  static char text[600];
  if (error == NULL) return "ok";
  struct fake_error* e = (struct fake_error*)error;
  snprintf(text, sizeof text, "%d %s", e->code, e->text);
  free(e);
  return text;
}

static PJRT_Error* create(PJRT_Client_Create_Args* args) {
  char text[4096];
  int n = 0;
  for (size_t i = 0; i < args->num_options; i++) {
    const PJRT_NamedValue* v = &args->create_options[i];
    n += snprintf(text + n, sizeof text - n, "%.*s=", (int)v->name_size, v->name);
    switch (v->type) {
      case PJRT_NamedValue_kString:
        n += snprintf(text + n, sizeof text - n, "'%.*s'", (int)v->value_size, v->string_value);
        break;
      case PJRT_NamedValue_kInt64: n += snprintf(text + n, sizeof text - n, "%ld", (long)v->int64_value); break;
      case PJRT_NamedValue_kFloat: n += snprintf(text + n, sizeof text - n, "%g", v->float_value); break;
      case PJRT_NamedValue_kBool:
        n += snprintf(text + n, sizeof text - n, "%s", v->bool_value ? "true" : "false");
        break;
      case PJRT_NamedValue_kInt64List:
        for (size_t j = 0; j < v->value_size; j++)
          n += snprintf(text + n, sizeof text - n, "[%ld]", (long)v->int64_array_value[j]);
    }
    n += snprintf(text + n, sizeof text - n, "; ");
  }
  if (args->kv_put_callback != NULL) {
    PJRT_KeyValuePutCallback_Args put = {.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE};
    put.key = "from plugin";
    put.key_size = strlen(put.key);
    put.value = "a\0b";
    put.value_size = 3;
    put.callback_error = (PJRT_CallbackError*)&make;
    put.user_arg = args->kv_put_user_arg;
    PJRT_Error* e = ((PJRT_Error * (*)(PJRT_KeyValuePutCallback_Args*)) args->kv_put_callback)(&put);
    n += snprintf(text + n, sizeof text - n, "put: %s; ", took(e));

    const char* keys[] = {"to plugin", "never"};
    for (int i = 0; i < 2; i++) {
      PJRT_KeyValueGetCallback_Args get = {.struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE};
      get.key = keys[i];
      get.key_size = strlen(keys[i]);
      get.timeout_in_ms = i == 0 ? 60000 : 20;  // the first one is there, however busy the machine is
      get.callback_error = (PJRT_CallbackError*)&make;
      get.user_arg = args->kv_get_user_arg;
      e = ((PJRT_Error * (*)(PJRT_KeyValueGetCallback_Args*)) args->kv_get_callback)(&get);
      if (e == NULL) {
        n += snprintf(text + n, sizeof text - n, "get: %.*s; ", (int)get.value_size, get.value);
        ((void (*)(char*))get.value_deleter_callback)(get.value);
      } else {
        n += snprintf(text + n, sizeof text - n, "get: %s; ", took(e));
      }
      PJRT_KeyValueTryGetCallback_Args look = {.struct_size = PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE};
      look.key = keys[i];
      look.key_size = strlen(keys[i]);
      look.callback_error = (PJRT_CallbackError*)&make;
      look.user_arg = args->kv_try_get_user_arg;
      e = ((PJRT_Error * (*)(PJRT_KeyValueTryGetCallback_Args*)) args->kv_try_get_callback)(&look);
      if (e == NULL) {
        n += snprintf(text + n, sizeof text - n, "try: %.*s; ", (int)look.value_size, look.value);
        ((void (*)(char*))look.value_deleter_callback)(look.value);
      } else {
        n += snprintf(text + n, sizeof text - n, "try: %s; ", took(e));
      }
    }
  }
  return fail(PJRT_Error_Code_ABORTED, text, (size_t)n);
}

static PJRT_Api table;
#ifdef EXTENSION
static PJRT_Extension_Base extension = {sizeof extension, EXTENSION, NULL};
#endif

#ifndef NO_SYMBOL
const PJRT_Api* GetPjrtApi(void) {
#ifdef NULL_TABLE
  return NULL;
#endif
  table.struct_size = sizeof table;
#ifdef EXTENSION
  table.extension_start = &extension;
#endif
  table.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  table.pjrt_api_version.major_version = MAJOR;
  table.pjrt_api_version.minor_version = MINOR;
  table.PJRT_Error_Destroy = destroy;
  table.PJRT_Error_Message = message;
  table.PJRT_Error_GetCode = code;
  table.PJRT_Plugin_Initialize = initialize;
  table.PJRT_Plugin_Attributes = attributes;
  table.PJRT_Client_Create = create;
#ifdef SHORT_TABLE
  table.struct_size = offsetof(PJRT_Api, pjrt_api_version);
#endif
#ifdef NO_CLIENT
  table.struct_size = offsetof(PJRT_Api, PJRT_Client_Create);
#endif
  return &table;
}
#endif
