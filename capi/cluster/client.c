// Clients of a cluster. Go makes one from what the controller says of the session's devices (pr_client_new to
// pr_client_done); from then on it does not change, and the slots that read it do not enter Go.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"

// ---- how Go makes a client ----

static bool is_of(PJRT_Client* c, const char* platform, const char* version) {
  return (c->topology.platform = pw_copy_text(platform)) && (c->topology.version = pw_copy_text(version));
}

PJRT_Client* pr_client_new(uint64_t session, const char* platform, const char* version, size_t devices) {
  PJRT_Client* c = pw_zeros(1, sizeof *c);
  if (c == NULL) return NULL;
  PR_COUNT(clients, 1);
  c->session = session;
  c->family = c;
  if (!(is_of(c, platform, version) && (c->device_structs = pw_zeros(devices, sizeof *c->device_structs)) &&
        (c->devices = pw_zeros(devices, sizeof *c->devices)))) {
    pr_client_free(c);
    return NULL;
  }
  c->num_devices = devices;
  for (size_t i = 0; i < devices; i++) {
    c->devices[i] = &c->device_structs[i];
    c->devices[i]->description.id = (int)i;
  }
  return c;
}

PJRT_Client* pr_client_beside(PJRT_Client* family, const char* platform, const char* version) {
  PJRT_Client* c = pw_zeros(1, sizeof *c);
  if (c == NULL) return NULL;
  c->session = family->session;
  c->family = family;
  c->next = family->next;
  family->next = c;
  c->device_structs = family->device_structs;
  c->devices = family->devices;
  c->num_devices = family->num_devices;
  return is_of(c, platform, version) ? c : NULL;
}

bool pr_client_shows(PJRT_Client* c, size_t first, size_t devices) {
  c->topology.devices = pw_zeros(devices, sizeof *c->topology.devices);
  if (c->topology.devices == NULL) return false;
  c->first = first;
  c->shown = c->topology.num_devices = devices;
  for (size_t i = 0; i < devices; i++) {
    c->devices[first + i]->client = c;
    c->topology.devices[i] = &c->devices[first + i]->description;
  }
  return true;
}

static bool attribute(PJRT_NamedValue* v, const char* name, PJRT_NamedValue_Type type) {
  memset(v, 0, sizeof *v);
  v->struct_size = PJRT_NamedValue_STRUCT_SIZE;
  v->name = pw_copy_text(name);
  v->name_size = v->name ? strlen(name) : 0;
  v->type = type;
  v->value_size = 1;
  return v->name != NULL;
}

static bool int_attribute(PJRT_NamedValue* v, const char* name, int64_t value) {
  bool named = attribute(v, name, PJRT_NamedValue_kInt64);
  v->int64_value = value;
  return named;
}

static bool string_attribute(PJRT_NamedValue* v, const char* name, const char* value) {
  bool named = attribute(v, name, PJRT_NamedValue_kString);
  v->string_value = pw_copy_text(value);
  v->value_size = v->string_value ? strlen(value) : 0;
  return named && v->string_value;
}

bool pr_client_device(PJRT_Client* c, size_t i, const char* kind, const char* worker, int64_t slice, int64_t local,
                      size_t memories, size_t default_memory, int64_t limit, int64_t share, bool host) {
  enum { kAttributesOfDevice = 3 };
  pw_account* account = &c->device_structs[i].account;
  account->limit = limit;
  account->share = share;
  account->host = host;
  PJRT_DeviceDescription* d = &c->device_structs[i].description;
  const char* platform = c->topology.platform;
  // The same text as on devices of one process; attributes say which worker a device belongs to.
  if (!((d->kind = pw_copy_text(kind)) &&
        (d->text = pw_text("%c%sDevice(id=%zu)", toupper(*platform), *platform ? platform + 1 : "", i)) &&
        (d->debug = pw_text("%s:%zu", platform, i)) && (d->memories = pw_zeros(memories, sizeof *d->memories)) &&
        (d->attributes = pw_zeros(kAttributesOfDevice, sizeof *d->attributes))))
    return false;
  d->num_memories = memories;
  d->default_memory = default_memory < memories ? default_memory : 0;
  d->num_attributes = kAttributesOfDevice;
  return int_attribute(&d->attributes[0], "slice_index", slice) &&
         string_attribute(&d->attributes[1], "worker", worker) &&
         int_attribute(&d->attributes[2], "local_index", local);
}

// new_attribute makes room for one more attribute of a device; NULL if memory is short.
static PJRT_NamedValue* new_attribute(PJRT_DeviceDescription* d) {
  PJRT_NamedValue* grown = pw_resize(d->attributes, (d->num_attributes + 1) * sizeof *grown);
  if (grown == NULL) return NULL;
  d->attributes = grown;
  return memset(&grown[d->num_attributes++], 0, sizeof *grown);
}

bool pr_device_string(PJRT_Client* c, size_t i, const char* name, const char* value) {
  PJRT_NamedValue* v = new_attribute(&c->device_structs[i].description);
  return v && string_attribute(v, name, value);
}

bool pr_device_int(PJRT_Client* c, size_t i, const char* name, int64_t value) {
  PJRT_NamedValue* v = new_attribute(&c->device_structs[i].description);
  return v && int_attribute(v, name, value);
}

bool pr_client_memory(PJRT_Client* c, size_t device, size_t i, const char* kind, const char* text, const char* debug) {
  pr_memory* m = pw_zeros(1, sizeof *m);
  if (m == NULL) return false;
  c->device_structs[device].description.memories[i] = m;
  pw_memory_init(&m->base);
  m->id = c->family->memory_ids++;
  c->num_memories++;
  m->device = c->devices[device];
  return (m->kind = pw_copy_text(kind)) && (m->text = pw_copy_text(text)) && (m->debug = pw_copy_text(debug));
}

// number_kind sets a memory's kind number: that of earlier memories of the same kind, or a new one.
static void number_kind(pr_memory* m, PJRT_Memory* const* before, size_t n) {
  for (size_t k = 0; k < n; k++) {
    const pr_memory* other = (const pr_memory*)before[k];
    if (strcmp(other->kind, m->kind) == 0) {
      m->kind_id = other->kind_id;
      return;
    }
    if (other->kind_id >= m->kind_id) m->kind_id = other->kind_id + 1;
  }
}

// serialize writes what the cluster is like. Equal clusters give equal texts: JAX keeps compiled programs apart by it.
static char* serialize(const PJRT_Client* c) {
  char* out = pw_text("%s\n%s\n", c->topology.platform, c->topology.version);
  size_t at = out ? strlen(out) : 0;
  for (size_t d = 0; out && d < c->shown; d++) {
    const PJRT_DeviceDescription* x = c->topology.devices[d];
    enum { kNumber = 32 };  // bytes for a number and the words around it
    size_t more = strlen(x->kind) + kNumber;
    char* grown = pw_resize(out, at + more);
    if (grown == NULL) {
      free(out);
      return NULL;
    }
    out = grown;
    at += (size_t)snprintf(out + at, more, "%s slice %lld\n", x->kind, (long long)x->attributes[0].int64_value);
  }
  return out;
}

bool pr_client_done(PJRT_Client* c) {
  c->memories = pw_zeros(c->num_memories, sizeof *c->memories);
  if (c->memories == NULL) return false;
  size_t n = 0;
  for (size_t d = 0; d < c->shown; d++)
    for (size_t i = 0; i < c->topology.devices[d]->num_memories; i++) {
      pr_memory* m = c->topology.devices[d]->memories[i];
      number_kind(m, c->memories, n);
      c->memories[n++] = &m->base.base;
    }
  c->topology.serialized = serialize(c);
  return c->topology.serialized != NULL;
}

void pr_client_free(PJRT_Client* c) {
  for (size_t d = 0; d < c->num_devices; d++) {
    PJRT_DeviceDescription* x = &c->device_structs[d].description;
    for (size_t i = 0; i < x->num_memories; i++) {
      pr_memory* m = x->memories[i];
      if (m == NULL) continue;  // the client was only partly made
      pw_memory_close(&m->base);
      free(m->kind);
      free(m->text);
      free(m->debug);
      free(m);
    }
    for (size_t i = 0; i < x->num_attributes; i++) {
      free((char*)x->attributes[i].name);
      if (x->attributes[i].type == PJRT_NamedValue_kString) free((char*)x->attributes[i].string_value);
    }
    free(x->attributes);
    free(x->memories);
    free(x->kind);
    free(x->text);
    free(x->debug);
  }
  free(c->device_structs);
  free(c->devices);
  for (PJRT_Client* next; c; c = next) {
    next = c->next;
    free(c->topology.platform);
    free(c->topology.version);
    free(c->topology.serialized);
    free(c->topology.devices);
    free(c->memories);
    free(c);
  }
  PR_COUNT(clients, -1);
}

pr_memory* pr_memory_kind(PJRT_Device* device, const char* kind, size_t size) {
  PJRT_DeviceDescription* d = &device->description;
  for (size_t i = 0; i < d->num_memories; i++)
    if (strlen(d->memories[i]->kind) == size && memcmp(d->memories[i]->kind, kind, size) == 0) return d->memories[i];
  return d->num_memories ? d->memories[d->default_memory] : NULL;
}

// ---- attributes of the cluster in the form of plugin attributes: those of the latest client ----
//
// Peers keep what they read, so attributes that another cluster's replace are never freed.

enum { kAttributes = 64 };
static PJRT_NamedValue plugin_attributes[kAttributes];
static size_t num_attributes;

size_t pr_attributes_new(void) { return num_attributes = 0; }

// is_same reports whether the next entry already has the attribute that is being written. It then stays as it is.
static bool is_same(const char* name, PJRT_NamedValue_Type type, const void* value, size_t size) {
  const PJRT_NamedValue* v = &plugin_attributes[num_attributes];
  if (v->name == NULL || strcmp(v->name, name) != 0 || v->type != type || v->value_size != size) return false;
  switch (type) {
    case PJRT_NamedValue_kString: return memcmp(v->string_value, value, size) == 0;
    case PJRT_NamedValue_kInt64List: return memcmp(v->int64_array_value, value, size * sizeof(int64_t)) == 0;
    default: return v->int64_value == *(const int64_t*)value;
  }
}

// end_attribute ends the writing of the next entry, and reports whether it is complete.
static bool end_attribute(PJRT_NamedValue* v, bool whole) {
  if (whole) {
    num_attributes++;
  } else {
    free((char*)v->name);
    if (v->type == PJRT_NamedValue_kString) free((char*)v->string_value);
    memset(v, 0, sizeof *v);
  }
  return whole;
}

bool pr_attribute_string(const char* name, const char* value) {
  if (num_attributes == kAttributes) return true;
  PJRT_NamedValue* v = &plugin_attributes[num_attributes];
  return end_attribute(v, is_same(name, PJRT_NamedValue_kString, value, strlen(value)) ||
                              string_attribute(v, name, value));
}

bool pr_attribute_ints(const char* name, const int64_t* values, size_t n, bool list) {
  if (num_attributes == kAttributes) return true;
  PJRT_NamedValue* v = &plugin_attributes[num_attributes];
  if (is_same(name, list ? PJRT_NamedValue_kInt64List : PJRT_NamedValue_kInt64, values, list ? n : 1))
    return end_attribute(v, true);
  bool whole = int_attribute(v, name, list ? 0 : *values);
  if (list && whole) {
    v->type = PJRT_NamedValue_kInt64List;
    v->int64_array_value = pw_copy(values, n * sizeof *values);
    v->value_size = n;
    whole = v->int64_array_value != NULL;
  }
  return end_attribute(v, whole);
}

PJRT_Error* pr_PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args* args) {
  (void)args;
  return NULL;
}

PW_READS(pr, PJRT_Plugin_Attributes, args->attributes = plugin_attributes, args->num_attributes = num_attributes)

// ---- client ----

PJRT_Error* pr_PJRT_Client_Create(PJRT_Client_Create_Args* args) {
  if (pw_forked) return pw_forked_error();
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  int code = prGoConnect((PJRT_NamedValue*)args->create_options, args->num_options, &args->client, &message);
  return code ? pw_error_take((PJRT_Error_Code)code, message) : NULL;
}

PJRT_Error* pr_PJRT_Client_Destroy(PJRT_Client_Destroy_Args* args) {
  if (args->client == NULL || pw_forked) return NULL;
  PJRT_Client* family = args->client->family;
  PR_COUNT(go_entries, 1);
  if (!prGoLeaves(family->session)) return NULL;  // others of the family are there
  pp_client_ended(family);
  pw_export_end(family);
  prGoDisconnect(family->session);
  pr_client_free(family);
  return NULL;
}

PW_READS(pr, PJRT_Client_PlatformName, GIVE(platform_name, args->client->topology.platform))
PW_READS(pr, PJRT_Client_PlatformVersion, GIVE(platform_version, args->client->topology.version))
PW_READS(pr, PJRT_Client_ProcessIndex, args->process_index = 0)
PW_READS(pr, PJRT_Client_Devices,
         args->devices = args->client->devices + args->client->first,
         args->num_devices = args->client->shown)

PW_READS(pr, PJRT_Client_AddressableDevices,
         args->addressable_devices = args->client->devices + args->client->first,
         args->num_addressable_devices = args->client->shown)

static PJRT_Error* lookup(PJRT_Client* c, int id, PJRT_Device** device) {
  if (id < 0 || (size_t)id < c->first || (size_t)id - c->first >= c->shown)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "no device has id %d: this client has %zu devices, from %zu", id,
                    c->shown, c->first);
  *device = c->devices[id];
  return NULL;
}

PJRT_Error* pr_PJRT_Client_LookupDevice(PJRT_Client_LookupDevice_Args* args) {
  return lookup(args->client, args->id, &args->device);
}

PJRT_Error* pr_PJRT_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args* args) {
  return lookup(args->client, args->local_hardware_id, &args->addressable_device);
}

PW_READS(pr, PJRT_Client_AddressableMemories,
         args->addressable_memories = args->client->memories,
         args->num_addressable_memories = args->client->num_memories)

PJRT_Error* pr_PJRT_Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args* args) {
  int64_t n = (int64_t)args->num_replicas * args->num_partitions;
  if (args->num_replicas < 1 || args->num_partitions < 1 || n > (int64_t)args->client->shown)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%d replicas of %d partitions do not fit on %zu devices",
                    args->num_replicas, args->num_partitions, args->client->shown);
  if (args->default_assignment_size < (size_t)n)
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "a device assignment of %lld entries does not fit into %zu",
                    (long long)n, args->default_assignment_size);
  for (int i = 0; i < n; i++) args->default_assignment[i] = (int)args->client->first + i;
  return NULL;
}

PJRT_Error* pr_PJRT_Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args* args) {
  (void)args;  // the only process
  return NULL;
}

// ---- devices ----

PW_READS(pr, PJRT_DeviceDescription_Id, args->id = args->device_description->id)
PW_READS(pr, PJRT_DeviceDescription_ProcessIndex, args->process_index = 0)

PW_READS(pr, PJRT_DeviceDescription_Attributes,
         args->attributes = args->device_description->attributes,
         args->num_attributes = args->device_description->num_attributes)

PW_READS(pr, PJRT_DeviceDescription_Kind, GIVE(device_kind, args->device_description->kind))
PW_READS(pr, PJRT_DeviceDescription_DebugString, GIVE(debug_string, args->device_description->debug))
PW_READS(pr, PJRT_DeviceDescription_ToString, GIVE(to_string, args->device_description->text))
PW_READS(pr, PJRT_Device_GetDescription, args->device_description = &args->device->description)
PW_READS(pr, PJRT_Device_IsAddressable, args->is_addressable = true)
PW_READS(pr, PJRT_Device_LocalHardwareId, args->local_hardware_id = args->device->description.id)

PW_READS(pr, PJRT_Device_AddressableMemories,
         args->memories = (PJRT_Memory* const*)args->device->description.memories,
         args->num_memories = args->device->description.num_memories)

PW_READS(pr, PJRT_Device_DefaultMemory, args->memory = (PJRT_Memory*)pr_memory_kind(args->device, "", 0))

// The part of this client, and what the worker reported about the device when it joined. No other process is asked.
PW_READS(pr, PJRT_Device_MemoryStats, pw_memory_stats(args, &args->device->account))

static void keep_attributes(void* attributes) { (void)attributes; }  // they live as long as the client

PJRT_Error* pr_PJRT_Device_GetAttributes(PJRT_Device_GetAttributes_Args* args) {
  PJRT_DeviceDescription* d = &((PJRT_Device*)args->device)->description;
  args->attributes = args->device_attributes = d->attributes;
  args->num_attributes = d->num_attributes;
  args->attributes_deleter = (void*)keep_attributes;
  return NULL;
}

// ---- memories ----

static pr_memory* memory_of(PJRT_Memory* m) { return (pr_memory*)m; }

PW_READS(pr, PJRT_Memory_Id, args->id = memory_of(args->memory)->id)
PW_READS(pr, PJRT_Memory_Kind, GIVE(kind, memory_of(args->memory)->kind))
PW_READS(pr, PJRT_Memory_Kind_Id, args->kind_id = memory_of(args->memory)->kind_id)
PW_READS(pr, PJRT_Memory_DebugString, GIVE(debug_string, memory_of(args->memory)->debug))
PW_READS(pr, PJRT_Memory_ToString, GIVE(to_string, memory_of(args->memory)->text))
PW_READS(pr, PJRT_Memory_AddressableByDevices, args->devices = &memory_of(args->memory)->device, args->num_devices = 1)

// ---- topology: the client's own, which lives as long as the client ----

PW_READS(pr, PJRT_Client_TopologyDescription, args->topology = &args->client->topology)

PJRT_Error* pr_PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args* args) {
  (void)args;
  return NULL;
}

PW_READS(pr, PJRT_TopologyDescription_PlatformName, GIVE(platform_name, args->topology->platform))
PW_READS(pr, PJRT_TopologyDescription_PlatformVersion, GIVE(platform_version, args->topology->version))

PW_READS(pr, PJRT_TopologyDescription_GetDeviceDescriptions,
         args->descriptions = args->topology->devices,
         args->num_descriptions = args->topology->num_devices)

PW_READS(pr, PJRT_TopologyDescription_Attributes, args->attributes = NULL, args->num_attributes = 0)

static void keep_topology(PJRT_SerializedTopology* topology) { free(topology); }

PJRT_Error* pr_PJRT_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args* args) {
  char* copy = pw_copy_text(args->topology->serialized);
  if (copy == NULL) return pw_short("a topology", strlen(args->topology->serialized));
  GIVE(serialized_bytes, copy);
  args->serialized_topology = (PJRT_SerializedTopology*)copy;
  args->serialized_topology_deleter = keep_topology;
  return NULL;
}

PJRT_Error* pr_PJRT_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args* args) {
  uint64_t h = 14695981039346656037u;  // FNV-1a
  for (const char* p = ((PJRT_TopologyDescription*)args->topology)->serialized; *p; p++)
    h = (h ^ (unsigned char)*p) * 1099511628211u;
  args->fingerprint = h;
  return NULL;
}

uint64_t pr_client_session(const PJRT_Client* c);  // for capi/public
uint64_t pr_client_session(const PJRT_Client* c) { return c->session; }
