// Clients, and the devices and memories of one, each beside the plugin's own. They are made with the client and live as
// long, so handles of both kinds lead to each other by a look at the client's lists.
#include <pthread.h>
#include <stdlib.h>

#include "embedded.h"

static pthread_mutex_t clients_mu = PTHREAD_MUTEX_INITIALIZER;  // guards the list of open clients
static PJRT_Client* clients;

PJRT_Device* pw_device_of(PJRT_Client* c, PJRT_Device* under) {
  for (size_t i = 0; i < c->num_devices; i++)
    if (c->device_structs[i].under == under) return &c->device_structs[i];
  return NULL;
}

PJRT_Memory* pw_memory_of(PJRT_Client* c, PJRT_Memory* under) {
  for (size_t i = 0; i < c->num_memories; i++)
    if (c->memory_structs[i].under == under) return &c->memory_structs[i].base.base;
  return NULL;
}

PJRT_Client* pw_client_with(PJRT_Memory* under) {
  pthread_mutex_lock(&clients_mu);
  PJRT_Client* c = clients;
  while (c && pw_memory_of(c, under) == NULL) c = c->next;
  pthread_mutex_unlock(&clients_mu);
  return c;
}

PJRT_Device* pw_device_anywhere(PJRT_Device* under) {
  PJRT_Device* d = NULL;
  pthread_mutex_lock(&clients_mu);
  for (PJRT_Client* c = clients; c && d == NULL; c = c->next) d = pw_device_of(c, under);
  pthread_mutex_unlock(&clients_mu);
  return d;
}

PJRT_Memory* pw_memory_kind(PJRT_Device* d, const char* kind, size_t size) {
  for (size_t i = 0; i < d->num_memories; i++) {
    pw_memory* m = (pw_memory*)d->memories[i];
    if (m->kind_size == size && memcmp(m->kind, kind, size) == 0) return &m->base.base;
  }
  return d->default_memory;
}

static PJRT_Error* no_memory(const char* what, size_t n, size_t size) { return pw_short(what, n * size); }

// attributes_init copies the plugin's attributes of a device, and adds those that devices of clusters have and this one
// lacks. They are 0: there is one island, and one worker.
static PJRT_Error* attributes_init(PJRT_Device* d) {
  static const char* const kOfClusters[] = {"slice_index", "virtual_task_index"};
  static const size_t kMore = sizeof kOfClusters / sizeof *kOfClusters;
  PW_ARGS(PJRT_DeviceDescription_Attributes_Args, has);
  has.device_description = d->description;
  if (PW_HAS(PJRT_DeviceDescription_Attributes)) {
    PJRT_Error* err = pw_under->PJRT_DeviceDescription_Attributes(&has);
    if (err) return err;
  }
  d->attributes = pw_zeros(has.num_attributes + kMore, sizeof *d->attributes);
  if (d->attributes == NULL)
    return no_memory("a device's attributes", has.num_attributes + kMore, sizeof *d->attributes);
  for (size_t i = 0; i < has.num_attributes; i++) d->attributes[d->num_attributes++] = has.attributes[i];
  for (size_t k = 0; k < kMore; k++) {
    const size_t size = strlen(kOfClusters[k]);
    bool known = false;
    for (size_t i = 0; i < has.num_attributes && !known; i++)
      known = has.attributes[i].name_size == size && memcmp(has.attributes[i].name, kOfClusters[k], size) == 0;
    if (!known)
      d->attributes[d->num_attributes++] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                                                            .name = kOfClusters[k],
                                                            .name_size = size,
                                                            .type = PJRT_NamedValue_kInt64,
                                                            .value_size = 1};
  }
  return NULL;
}

// Fills one device; the client's memories exist already.
static PJRT_Error* device_init(PJRT_Client* c, PJRT_Device* d) {
  PJRT_Error* err;
  PW_ARGS(PJRT_Device_GetDescription_Args, desc);
  desc.device = d->under;
  if ((err = pw_under->PJRT_Device_GetDescription(&desc))) return err;
  d->description = desc.device_description;
  PW_ARGS(PJRT_DeviceDescription_Id_Args, id);
  id.device_description = d->description;
  if ((err = pw_under->PJRT_DeviceDescription_Id(&id))) return err;
  d->id = id.id;
  if ((err = attributes_init(d))) return err;
  if (d->index < 0) return NULL;
  PW_ARGS(PJRT_Device_LocalHardwareId_Args, local);
  local.device = d->under;
  if ((err = pw_under->PJRT_Device_LocalHardwareId(&local))) return err;
  d->local_id = local.local_hardware_id;
  PW_ARGS(PJRT_Device_AddressableMemories_Args, mem);
  mem.device = d->under;
  if ((err = pw_under->PJRT_Device_AddressableMemories(&mem))) return err;
  d->memories = pw_zeros(mem.num_memories, sizeof *d->memories);
  if (d->memories == NULL) return no_memory("a device's memories", mem.num_memories, sizeof *d->memories);
  d->num_memories = mem.num_memories;
  for (size_t i = 0; i < mem.num_memories; i++) d->memories[i] = pw_memory_of(c, mem.memories[i]);
  PW_ARGS(PJRT_Device_DefaultMemory_Args, def);
  def.device = d->under;
  if ((err = pw_under->PJRT_Device_DefaultMemory(&def))) return err;
  d->default_memory = pw_memory_of(c, def.memory);
  return NULL;
}

static PJRT_Error* memory_init(PJRT_Client* c, pw_memory* m) {
  PJRT_Error* err;
  pw_memory_init(&m->base);
  PW_ARGS(PJRT_Memory_Kind_Args, kind);
  kind.memory = m->under;
  if ((err = pw_under->PJRT_Memory_Kind(&kind))) return err;
  m->kind = kind.kind;
  m->kind_size = kind.kind_size;
  PW_ARGS(PJRT_Memory_AddressableByDevices_Args, by);
  by.memory = m->under;
  if ((err = pw_under->PJRT_Memory_AddressableByDevices(&by))) return err;
  m->devices = pw_zeros(by.num_devices, sizeof *m->devices);
  if (m->devices == NULL) return no_memory("a memory's devices", by.num_devices, sizeof *m->devices);
  m->num_devices = by.num_devices;
  for (size_t i = 0; i < by.num_devices; i++) m->devices[i] = pw_device_of(c, by.devices[i]);
  return NULL;
}

// list_devices makes a client's devices stand for those of the plugin's client.
static void list_devices(PJRT_Client* c, PJRT_Device* const* all, PJRT_Device* const* addressable) {
  for (size_t i = 0; i < c->num_devices; i++) {
    PJRT_Device* d = &c->device_structs[i];
    c->devices[i] = d;
    d->client = c;
    d->under = all[i];
    d->index = -1;
    for (size_t j = 0; j < c->num_addressable; j++)
      if (addressable[j] == d->under) {
        d->index = (int32_t)j;
        d->time = &c->times->devices[j];
        c->addressable[j] = d;
      }
  }
}

PJRT_Error* pw_client_new(PJRT_Client* under, uint64_t session, pw_pass* pass, char* version, PJRT_Client** out) {
  PJRT_Error* err;
  PW_ARGS(PJRT_Client_Devices_Args, all);
  PW_ARGS(PJRT_Client_AddressableDevices_Args, local);
  PW_ARGS(PJRT_Client_AddressableMemories_Args, mem);
  all.client = local.client = mem.client = under;
  if ((err = pw_under->PJRT_Client_Devices(&all))) return err;
  if ((err = pw_under->PJRT_Client_AddressableDevices(&local))) return err;
  if ((err = pw_under->PJRT_Client_AddressableMemories(&mem))) return err;

  PJRT_Client* c = pw_zeros(1, sizeof *c);
  if (c == NULL) return no_memory("a client", 1, sizeof *c);
  PW_COUNT(clients, 1);
  c->under = under;
  c->session = session;
  c->pass = pass;
  c->version = version;
  size_t devices = all.num_devices, addressable = local.num_addressable_devices,
         memories = mem.num_addressable_memories;
  if (!((c->times = pw_device_times_new(addressable)) &&
        (c->device_structs = pw_zeros(devices, sizeof *c->device_structs)) &&
        (c->memory_structs = pw_zeros(memories, sizeof *c->memory_structs)) &&
        (c->devices = pw_zeros(devices, sizeof *c->devices)) &&
        (c->addressable = pw_zeros(addressable, sizeof *c->addressable)) &&
        (c->memories = pw_zeros(memories, sizeof *c->memories)))) {
    err = no_memory("a client's devices and memories", devices + memories, sizeof(PJRT_Device));
    goto fail;
  }
  c->num_devices = devices;
  c->num_addressable = addressable;
  c->num_memories = memories;
  list_devices(c, all.devices, local.addressable_devices);
  for (size_t i = 0; i < c->num_memories; i++) {
    c->memory_structs[i].under = mem.addressable_memories[i];
    c->memories[i] = &c->memory_structs[i].base.base;
  }
  for (size_t i = 0; i < c->num_memories; i++)
    if ((err = memory_init(c, &c->memory_structs[i]))) goto fail;
  for (size_t i = 0; i < c->num_devices; i++)
    if ((err = device_init(c, &c->device_structs[i]))) goto fail;
  pthread_mutex_lock(&clients_mu);
  c->next = clients;
  clients = c;
  pthread_mutex_unlock(&clients_mu);
  *out = c;
  return NULL;
fail:
  c->version = NULL;  // it remains the caller's
  pw_client_free(c);
  return err;
}

void pw_client_free(PJRT_Client* c) {
  pthread_mutex_lock(&clients_mu);
  PJRT_Client** at = &clients;
  while (*at && *at != c) at = &(*at)->next;
  if (*at) *at = c->next;
  pthread_mutex_unlock(&clients_mu);
  for (size_t i = 0; i < c->num_devices; i++) {
    free(c->device_structs[i].memories);
    free(c->device_structs[i].attributes);
  }
  for (size_t i = 0; i < c->num_memories; i++) {
    pw_memory* m = &c->memory_structs[i];
    free(m->devices);
    pw_memory_close(&m->base);
  }
  pw_device_times_drop(c->times);
  free(c->device_structs);
  free(c->memory_structs);
  free(c->devices);
  free(c->addressable);
  free(c->memories);
  free(c->version);
  free(c);
  PW_COUNT(clients, -1);
}

size_t pw_in_use(int64_t* bytes, size_t room) {
  size_t devices = 0;
  for (size_t i = 0; i < room; i++) bytes[i] = 0;
  pthread_mutex_lock(&clients_mu);
  for (PJRT_Client* c = clients; c; c = c->next) {
    if (c->num_addressable > devices) devices = c->num_addressable;
    for (size_t i = 0; i < c->num_addressable && i < room; i++)
      bytes[i] += atomic_load_explicit(&c->addressable[i]->account.in_use, memory_order_relaxed);
  }
  pthread_mutex_unlock(&clients_mu);
  return devices;
}

size_t pw_device_read(uint64_t session, int64_t* ns, int64_t* bytes, size_t room) {
  size_t devices = 0;
  pthread_mutex_lock(&clients_mu);
  for (PJRT_Client* c = clients; c; c = c->next) {
    if (c->session != session) continue;
    devices = c->num_addressable;
    for (size_t i = 0; i < devices && i < room; i++) {
      ns[i] = atomic_load_explicit(&c->addressable[i]->time->spent, memory_order_relaxed);
      bytes[i] = atomic_load_explicit(&c->addressable[i]->account.in_use, memory_order_relaxed);
    }
  }
  pthread_mutex_unlock(&clients_mu);
  return devices;
}

// ---- slots ----

PW_READS(pw, PJRT_Client_PlatformVersion,
         args->platform_version = args->client->version,
         args->platform_version_size = strlen(args->client->version))

PW_READS(pw, PJRT_Client_Devices, args->devices = args->client->devices, args->num_devices = args->client->num_devices)

PW_READS(pw, PJRT_Client_AddressableDevices,
         args->addressable_devices = args->client->addressable,
         args->num_addressable_devices = args->client->num_addressable)

PJRT_Error* pw_PJRT_Client_LookupDevice(PJRT_Client_LookupDevice_Args* args) {
  PJRT_Client* c = args->client;
  for (size_t i = 0; i < c->num_devices; i++)
    if (c->devices[i]->id == args->id) {
      args->device = c->devices[i];
      return NULL;
    }
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "no device has id %d: this client has %zu devices", args->id,
                  c->num_devices);
}

PJRT_Error* pw_PJRT_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args* args) {
  PJRT_Client* c = args->client;
  for (size_t i = 0; i < c->num_addressable; i++)
    if (c->addressable[i]->local_id == args->local_hardware_id) {
      args->addressable_device = c->addressable[i];
      return NULL;
    }
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "no addressable device has local hardware id %d: this client has %zu addressable devices",
                  args->local_hardware_id, c->num_addressable);
}

PW_READS(pw, PJRT_Client_AddressableMemories,
         args->addressable_memories = args->client->memories,
         args->num_addressable_memories = args->client->num_memories)

PW_READS(pw, PJRT_Device_GetDescription, args->device_description = args->device->description)
PJRT_Error* pw_PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args* args) {
  pthread_mutex_lock(&clients_mu);
  PJRT_Device* found = NULL;
  for (PJRT_Client* c = clients; c && found == NULL; c = c->next)
    for (size_t i = 0; i < c->num_devices && found == NULL; i++)
      if (c->devices[i]->description == args->device_description) found = c->devices[i];
  pthread_mutex_unlock(&clients_mu);
  if (found) {
    args->attributes = found->attributes;
    args->num_attributes = found->num_attributes;
    return NULL;
  }
  if (!PW_HAS(PJRT_DeviceDescription_Attributes)) return pw_unimplemented("PJRT_DeviceDescription_Attributes");
  return pw_under->PJRT_DeviceDescription_Attributes(args);  // of a topology
}

static void keep_attributes(void* attributes) { (void)attributes; }  // they live as long as the client

PJRT_Error* pw_PJRT_Device_GetAttributes(PJRT_Device_GetAttributes_Args* args) {
  const PJRT_Device* d = args->device;
  args->attributes = args->device_attributes = d->attributes;
  args->num_attributes = d->num_attributes;
  args->attributes_deleter = (void*)keep_attributes;
  return NULL;
}

PW_READS(pw, PJRT_Device_IsAddressable, args->is_addressable = args->device->index >= 0)
PW_READS(pw, PJRT_Device_LocalHardwareId, args->local_hardware_id = args->device->local_id)

PW_READS(pw, PJRT_Device_AddressableMemories,
         args->memories = args->device->memories,
         args->num_memories = args->device->num_memories)

PW_READS(pw, PJRT_Device_DefaultMemory, args->memory = args->device->default_memory)

PW_READS(pw, PJRT_Memory_Kind,
         args->kind = ((pw_memory*)args->memory)->kind,
         args->kind_size = ((pw_memory*)args->memory)->kind_size)

PW_READS(pw, PJRT_Memory_AddressableByDevices,
         args->devices = ((pw_memory*)args->memory)->devices,
         args->num_devices = ((pw_memory*)args->memory)->num_devices)

uint64_t pw_client_session(const PJRT_Client* c);  // for capi/public
uint64_t pw_client_session(const PJRT_Client* c) { return c->session; }
