#include <stdio.h>
#include <stdlib.h>

#include "public.h"

const PJRT_Api* pw_embedded_api(void);  // capi/embedded
const PJRT_Api* pr_api(void);           // capi/cluster

uint32_t pathways_api_version(void) { return (uint32_t)PATHWAYS_API_MAJOR << 16 | PATHWAYS_API_MINOR; }

int pathways_has_feature(const char* name) {
  static const char* const features[] = {"embedded", "cluster", "view", "dlpack", "arrow", "slices", "programs"};
  for (size_t i = 0; name && i < sizeof features / sizeof *features; i++)
    if (strcmp(name, features[i]) == 0) return 1;
  return 0;
}

// ---- opening and ending ----

static void set_option(PJRT_NamedValue* v, const char* name, PJRT_NamedValue_Type type) {
  memset(v, 0, sizeof *v);
  v->struct_size = PJRT_NamedValue_STRUCT_SIZE;
  v->name = name;
  v->name_size = strlen(name);
  v->type = type;
  v->value_size = 1;
}

// connect makes the frontend's client.
static PJRT_Error* connect_to(pc_session* s, const char* address, const pathways_session_options* o) {
  PJRT_NamedValue values[4];  // memory_limit comes with none of the cluster's
  PW_ARGS(PJRT_Client_Create_Args, create);
  create.create_options = values;
  s->cluster = *address != 0;
  if (s->cluster) {
    s->api = pr_api();
    PJRT_NamedValue* v = &values[create.num_options++];
    set_option(v, "address", PJRT_NamedValue_kString);
    v->string_value = address;
    v->value_size = strlen(address);
  } else {
    s->api = pw_embedded_api();
  }
  if (o->devices) {
    set_option(&values[create.num_options], "devices", PJRT_NamedValue_kInt64);
    values[create.num_options++].int64_value = o->devices;
  }
  if (o->elastic) {
    set_option(&values[create.num_options], "elastic", PJRT_NamedValue_kInt64);
    values[create.num_options++].int64_value = 1;
  }
  if (o->platform) {
    PJRT_NamedValue* v = &values[create.num_options++];
    set_option(v, "platform", PJRT_NamedValue_kString);
    v->string_value = o->platform;
    v->value_size = strlen(o->platform);
  }
  if (o->memory_limit) {
    set_option(&values[create.num_options], "memory_limit", PJRT_NamedValue_kInt64);
    values[create.num_options++].int64_value = o->memory_limit;
  }
  PJRT_Error* err = s->api->PJRT_Client_Create(&create);
  s->client = create.client;
  return err;
}

// read_devices reads the client's devices and memories.
static PJRT_Error* read_devices(pc_session* s) {
  PW_ARGS(PJRT_Client_AddressableDevices_Args, devices);
  PW_ARGS(PJRT_Client_PlatformName_Args, platform);
  devices.client = platform.client = s->client;
  PJRT_Error* err;
  if ((err = s->api->PJRT_Client_AddressableDevices(&devices))) return err;
  if ((err = s->api->PJRT_Client_PlatformName(&platform))) return err;
  s->on_host = !s->cluster && platform.platform_name_size == 3 && memcmp(platform.platform_name, "cpu", 3) == 0;
  s->devices = pw_zeros(devices.num_addressable_devices, sizeof *s->devices);
  if (s->devices == NULL) return pw_short("a session's devices", devices.num_addressable_devices * sizeof *s->devices);
  for (size_t i = 0; i < devices.num_addressable_devices; i++) {
    pc_device* d = &s->devices[i];
    d->device = devices.addressable_devices[i];
    PW_ARGS(PJRT_Device_GetDescription_Args, get);
    PW_ARGS(PJRT_DeviceDescription_Id_Args, id);
    PW_ARGS(PJRT_Device_DefaultMemory_Args, memory);
    get.device = memory.device = d->device;
    if ((err = s->api->PJRT_Device_GetDescription(&get))) return err;
    id.device_description = get.device_description;
    if ((err = s->api->PJRT_DeviceDescription_Id(&id))) return err;
    if ((err = s->api->PJRT_Device_DefaultMemory(&memory))) return err;
    d->id = id.id;
    d->memory = memory.memory;
    s->num_devices++;
  }
  return NULL;
}

static void end(pc_session* s) {
  if (s->client) {
    PW_ARGS(PJRT_Client_Destroy_Args, a);
    a.client = s->client;
    PJRT_Error* err = s->api->PJRT_Client_Destroy(&a);
    if (err) pw_error_free(err);
  }
  pthread_mutex_destroy(&s->mu);
  free(s->devices);
  free(s);
}

void pc_session_destroy(pc_object* o) { end((pc_session*)o); }

pathways_error pathways_session_open(const pathways_session_options* options, pathways_session* session) {
  static const pathways_session_options none = {.struct_size = sizeof none};
  if (options == NULL) options = &none;
  PC_READ(pathways_session_options, o, options, "pathways_session_options");
  if (session == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "session_open: the session is NULL: expected where to write its handle");
  PC_TRY(pc_forked());
  const char* address = o.address ? o.address : getenv("PATHWAYS_ADDRESS");
  if (address == NULL) address = "";
  if (o.devices < 0 || o.memory_limit < 0)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "session_open: devices is %d and memory_limit %lld: expected no negative number", (int)o.devices,
                   (long long)o.memory_limit);
  if (*address && o.memory_limit)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "session_open: memory_limit is for this process's own devices; those of the cluster at %s have the "
                   "limit that its workers were started with", address);
  if (o.elastic < 0 || o.elastic > 1)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "session_open: elastic is %d: expected 0 or 1", (int)o.elastic);
  if (*address == 0 && o.elastic)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "session_open: elastic is for clusters, which workers can join, and no address names one: expected "
                   "0, or the address of a controller");
  if (*address == 0 && o.platform)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "session_open: platform is \"%s\", and is for clusters, and no address names one: expected NULL, or "
                   "the address of a controller", o.platform);
  if (o.platform && strchr(o.platform, ','))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "session_open: platform is \"%s\": expected one; the devices of a session are of one platform here",
                   o.platform);
  pc_session* s = pw_zeros(1, sizeof *s);
  if (s == NULL) return pc_short("a session", sizeof *s);
  pthread_mutex_init(&s->mu, NULL);
  PJRT_Error* err = connect_to(s, address, &o);
  if (err == NULL) err = read_devices(s);
  if (err) {
    end(s);
    return pc_take(err);
  }
  return pc_new(&s->base, PC_SESSION, NULL, session);
}

// ---- information ----

static void text(char* to, size_t room, const char* from, size_t size) {
  snprintf(to, room, "%.*s", (int)size, from ? from : "");
}

pathways_error pathways_session_info(pathways_session session, pathways_session_info_t* info) {
  PC_STRUCT(info, "pathways_session_info_t");
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  pathways_session_info_t i = {.num_devices = (int32_t)s->num_devices,
                               .cluster = s->cluster,
                               .arrays = s->arrays,
                               .executables = s->executables,
                               .runs = s->runs,
                               .puts = s->puts,
                               .fetches = s->fetches};
  PW_ARGS(PJRT_Client_PlatformName_Args, platform);
  platform.client = s->client;
  PJRT_Error* err = s->api->PJRT_Client_PlatformName(&platform);
  if (err == NULL) {
    text(i.platform, sizeof i.platform, platform.platform_name, platform.platform_name_size);
    PC_WRITE(info, i);
  }
  pc_let(s);
  return pc_take(err);
}

pathways_error pathways_device_info(pathways_session session, int32_t device, pathways_device_info_t* info) {
  PC_STRUCT(info, "pathways_device_info_t");
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  if (device < 0 || (size_t)device >= s->num_devices) {
    size_t n = s->num_devices;
    pc_let(s);
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "device_info: there is no device %d: this session has %zu, from 0",
                   (int)device, n);
  }
  pc_device* d = &s->devices[device];
  pathways_device_info_t i = {.id = d->id, .on_host = s->on_host, .bytes_in_use = -1};
  PW_ARGS(PJRT_Device_GetDescription_Args, get);
  PW_ARGS(PJRT_DeviceDescription_Kind_Args, kind);
  PW_ARGS(PJRT_DeviceDescription_Attributes_Args, attributes);
  PW_ARGS(PJRT_Device_MemoryStats_Args, memory);
  get.device = memory.device = d->device;
  PJRT_Error* err = s->api->PJRT_Device_GetDescription(&get);
  kind.device_description = attributes.device_description = get.device_description;
  if (err == NULL) err = s->api->PJRT_DeviceDescription_Kind(&kind);
  if (err == NULL) err = s->api->PJRT_DeviceDescription_Attributes(&attributes);
  if (err == NULL) {
    text(i.kind, sizeof i.kind, kind.device_kind, kind.device_kind_size);
    for (size_t k = 0; k < attributes.num_attributes; k++) {
      const PJRT_NamedValue* v = &attributes.attributes[k];
      if (v->type == PJRT_NamedValue_kString && v->name_size == 6 && memcmp(v->name, "worker", 6) == 0)
        text(i.worker, sizeof i.worker, v->string_value, v->value_size);
    }
    PJRT_Error* unknown = s->api->PJRT_Device_MemoryStats(&memory);
    if (unknown) pw_error_free(unknown);
    else i.bytes_in_use = memory.bytes_in_use;
    PC_WRITE(info, i);
  }
  pc_let(s);
  return pc_take(err);
}

// ---- devices ----

pc_device* pc_device_of(const pc_session* s, PJRT_Device* device) {
  for (size_t i = 0; i < s->num_devices; i++)
    if (s->devices[i].device == device) return &s->devices[i];
  return NULL;
}

pathways_error pc_devices(pc_session* s, const int32_t* ids, size_t n, pc_device** list) {
  if (n > s->num_devices)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "%zu devices are asked for: this session has %zu", n, s->num_devices);
  for (size_t i = 0; i < n; i++) {
    list[i] = ids ? NULL : &s->devices[i];
    for (size_t d = 0; ids && d < s->num_devices; d++)
      if (s->devices[d].id == ids[i]) list[i] = &s->devices[d];
    if (list[i] == NULL)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                     "no device of this session has the id %d; pathways_device_info tells those that there are",
                     (int)ids[i]);
    for (size_t before = 0; before < i; before++)
      if (list[before] == list[i])
        return pc_fail(PATHWAYS_INVALID_ARGUMENT, "device %d is named twice", (int)ids[i]);
  }
  return 0;
}
