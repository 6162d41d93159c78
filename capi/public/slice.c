// Slices: devices of a session that are granted together. capi/slices grants them.
#include "slices.h"

#include <math.h>
#include <stdlib.h>

#include "capture.h"
#include "public.h"

uint64_t pw_client_session(const PJRT_Client* c);  // capi/embedded
uint64_t pr_client_session(const PJRT_Client* c);  // capi/cluster

typedef struct {
  pc_object base;
  uint64_t number;
  pthread_mutex_t mu;  // guards places
  size_t num_devices;
  uint32_t places[];  // in the session's list
} slice;

static uint64_t owner_of(const pc_session* s) {
  return pw_slice_owner(s->cluster ? pr_client_session(s->client) : pw_client_session(s->client), s->cluster);
}

void pc_slice_destroy(pc_object* o) {
  slice* l = (slice*)o;
  pw_slice_release(owner_of(o->session), l->number);
  pthread_mutex_destroy(&l->mu);
  free(l);
}

// slice_size returns how many devices a slice should have.
static pathways_error slice_size(const pathways_slice_options* o, int64_t* n) {
  if (o->devices < 0 || o->num_topology > PATHWAYS_MAX_DIMS || (o->topology == NULL && o->num_topology))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "slice_open: %d devices, in a topology of %zu sizes: expected at most %d sizes, and their list",
                   (int)o->devices, o->num_topology, PATHWAYS_MAX_DIMS);
  if (o->exclusive < 0 || o->exclusive > 1 || o->wait_ns < -1)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "slice_open: exclusive is %d and wait_ns %lld: expected 0 or 1, and -1 or more", (int)o->exclusive,
                   (long long)o->wait_ns);
  *n = o->num_topology ? 1 : o->devices;
  for (size_t i = 0; i < o->num_topology; i++)
    if (o->topology[i] < 1 || __builtin_mul_overflow(*n, o->topology[i], n) || *n > INT32_MAX)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT, "slice_open: size %zu of the topology is %lld", i,
                     (long long)o->topology[i]);
  if (*n < 1 || (o->devices && *n != o->devices))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "slice_open: %d devices are asked for, and %lld by the topology: expected one number of 1 or more",
                   (int)o->devices, (long long)(o->num_topology ? *n : 0));
  return 0;
}

pathways_error pathways_slice_open(pathways_session session, const pathways_slice_options* options,
                                   pathways_slice* handle) {
  PC_READ(pathways_slice_options, o, options, "pathways_slice_options");
  if (handle == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "slice_open: the slice is NULL: expected where to write its handle");
  int64_t n = 0;
  PC_TRY(slice_size(&o, &n));
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  // More devices than there are cannot be granted.
  size_t places = (size_t)n < s->num_devices ? (size_t)n : s->num_devices;
  slice* l = pw_zeros(1, sizeof *l + places * sizeof *l->places);
  if (l == NULL) {
    pc_let(s);
    return pc_short("a slice", sizeof *l + places * sizeof *l->places);
  }
  l->num_devices = (size_t)n;
  uint64_t owner = owner_of(s);
  const pw_slice_want want = {.devices = n,
                              .topology = o.topology,
                              .num_topology = o.num_topology,
                              .island = o.island ? o.island : "",
                              .kind = o.kind ? o.kind : "",
                              .exclusive = o.exclusive == 1,
                              .wait = o.wait_ns < 0 ? INFINITY : (double)o.wait_ns / 1e9,
                              .priority = o.priority};
  int64_t position;
  char* lacks;
  pathways_error err = pc_take(pp_error(pw_slice_ask(&owner, &want, &l->number)));
  if (err == 0)
    err = pc_take(pp_error(pw_slice_wait(owner, l->number, INFINITY, l->places, places, &position, &lacks)));
  if (err) {
    free(l);
  } else {
    pthread_mutex_init(&l->mu, NULL);
    err = pc_new(&l->base, PC_SLICE, s, handle);
  }
  pc_let(s);
  return err;
}

pathways_error pathways_slice_devices(pathways_slice handle, int32_t* devices, size_t room) {
  if (devices == NULL && room) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "slice_devices: the list is NULL");
  slice* l;
  PC_TRY(pc_get(handle, PC_SLICE, &l));
  pthread_mutex_lock(&l->mu);
  for (size_t i = 0; i < l->num_devices && i < room; i++) devices[i] = l->base.session->devices[l->places[i]].id;
  pthread_mutex_unlock(&l->mu);
  pc_let(l);
  return 0;
}

pathways_error pathways_slice_renew(pathways_slice handle) {
  slice* l;
  PC_TRY(pc_get(handle, PC_SLICE, &l));
  uint32_t* places = pw_zeros(l->num_devices, sizeof *places);
  if (places == NULL) {
    pc_let(l);
    return pc_short("a slice's devices", l->num_devices * sizeof *places);
  }
  pc_session* s = l->base.session;
  pathways_error err = pc_take(pp_error(pw_slice_remap(owner_of(s), l->number, places, l->num_devices)));
  if (err == 0) {
    pthread_mutex_lock(&l->mu);
    memcpy(l->places, places, l->num_devices * sizeof *places);
    pthread_mutex_unlock(&l->mu);
  }
  free(places);
  pc_let(l);
  return err;
}
