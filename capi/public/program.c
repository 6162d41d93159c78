// Programs: what a thread has a session run and copy, recorded by the session's frontend (capi/capture) and played
// again.
#include <stdlib.h>

#include "public.h"
#include "capture.h"

extern const pp_frontend pw_frontend, pr_frontend;  // capi/embedded, capi/cluster

// place describes an input or a result.
typedef struct {
  pw_shape* shape;  // of a shard
  bool tiled;
  int64_t tiles[PATHWAYS_MAX_DIMS];
  size_t num_shards;
  pc_device** devices;
} place;

typedef struct {
  pc_object base;
  pp_program* program;
  place *inputs, *outputs;
  size_t num_inputs, num_outputs;
  size_t in_shards, out_shards;  // of all together
} program;

// place_of returns false if memory is short.
static bool place_of(place* to, const pc_array* a) {
  pc_device** devices = pw_zeros(a->num_shards, sizeof *devices);
  if (devices == NULL) return false;
  *to = (place){.shape = a->shape, .tiled = a->tiled, .num_shards = a->num_shards};
  pw_shape_hold(a->shape, 1);
  memcpy(to->tiles, a->tiles, sizeof to->tiles);
  to->devices = devices;
  for (size_t i = 0; i < a->num_shards; i++) to->devices[i] = a->shards[i].device;
  return true;
}

static void places_free(place* list, size_t n) {
  for (size_t i = 0; i < n; i++) {
    pw_shape_drop(list[i].shape);
    free(list[i].devices);
  }
  free(list);
}

void pc_program_destroy(pc_object* o) {
  program* p = (program*)o;
  pp_program_drop(p->program);
  places_free(p->inputs, p->num_inputs);
  places_free(p->outputs, p->num_outputs);
  free(p);
}

// ---- the capture of a thread ----

typedef struct {
  pc_session* session;  // with a reference, so that what was recorded can be freed
  pp_capture* of;       // the thread's capture may be another one, if the thread calls the frontend itself
  place* inputs;
  size_t num_inputs;
} capture;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void end_capture(void* arg) {
  capture* c = arg;
  if (c->of == pp_capturing) pp_leave();
  places_free(c->inputs, c->num_inputs);
  pc_let(c->session);
  free(c);
}

// When a thread ends, its capture is abandoned.
static void make_key(void) {
  if (pthread_key_create(&key, end_capture)) abort();  // a process has more than a thousand keys
}

static capture* own_capture(void) {
  pthread_once(&once, make_key);
  return pthread_getspecific(key);
}

static pathways_error no_capture(const char* call) {
  return pc_fail(PATHWAYS_FAILED_PRECONDITION,
                 "%s: this thread captures no program; pathways_program_begin does, on the thread that it is called on",
                 call);
}

// the returns the thread's capture, or NULL.
static capture* the(void) {
  capture* c = own_capture();
  return c && c->of == pp_capturing ? c : NULL;
}

pathways_error pathways_program_begin(pathways_session session) {
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  capture* c = pw_zeros(1, sizeof *c);
  pathways_error err = c ? pc_take(pp_error(pp_begin())) : pc_short("a capture", sizeof *c);
  if (err) {
    free(c);
    pc_let(s);
    return err;
  }
  capture* stray = own_capture();
  *c = (capture){.session = s, .of = pp_capturing};
  pthread_setspecific(key, c);
  if (stray) end_capture(stray);
  return 0;
}

pathways_error pathways_program_abandon(void) {
  PC_TRY(pc_forked());
  capture* c = own_capture();
  pthread_setspecific(key, NULL);
  if (c) end_capture(c);
  return 0;
}

static const pp_frontend* frontend_of(const pc_session* s) { return s->cluster ? &pr_frontend : &pw_frontend; }

// add_input makes an array an input of a capture, with its shards on these devices. It takes the array.
static pathways_error add_input(capture* c, pc_array* a, pc_device* const* devices, pathways_array* handle) {
  pc_session* s = c->session;
  size_t n = a->num_shards;
  pp_look* looks = pw_zeros(n, sizeof *looks);
  PJRT_Buffer** buffers = pw_zeros(n, sizeof *buffers);
  place* inputs = pw_resize(c->inputs, (c->num_inputs + 1) * sizeof *inputs);
  if (inputs) c->inputs = inputs;
  pathways_error err = 0;
  if (looks == NULL || buffers == NULL || inputs == NULL) err = pc_no_array(n);
  for (size_t i = 0; i < n && err == 0; i++) {
    looks[i] = (pp_look){devices[i]->device, devices[i]->memory, a->shape, NULL};
    a->shards[i].device = devices[i];
  }
  if (err == 0 && !place_of(&c->inputs[c->num_inputs], a)) err = pc_no_array(n);
  if (err == 0 && (err = pc_take(pp_input_new(frontend_of(s), s->client, looks, n, buffers)))) {
    free(c->inputs[c->num_inputs].devices);
    pw_shape_drop(c->inputs[c->num_inputs].shape);
  }
  for (size_t i = 0; i < n && err == 0; i++) a->shards[i].buffer = buffers[i];
  if (err) {
    pc_array_free(a);
  } else {
    c->num_inputs++;
    err = pc_new(&a->base, PC_ARRAY, s, handle);
  }
  free(buffers);
  free(looks);
  return err;
}

pathways_error pathways_program_input(const pathways_host_options* options, pathways_array* array) {
  PC_READ(pathways_host_options, o, options, "pathways_host_options");
  PC_TRY(pc_forked());
  capture* c = the();
  if (c == NULL) return no_capture("program_input");
  if (array == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "program_input: the array is NULL: expected where to write its handle");
  if (o.data || o.mode || o.byte_strides || o.released)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "program_input: an input has type, dims, tiles and devices, and no data, mode, strides or release");
  if ((o.devices == NULL && o.num_devices > 1) || (o.devices && o.num_devices == 0))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "program_input: %zu devices, and their list is%s NULL", o.num_devices,
                   o.devices ? " not" : "");
  pc_session* s = c->session;
  size_t n = o.num_devices ? o.num_devices : 1;
  int64_t tiles[PATHWAYS_MAX_DIMS], dims[PATHWAYS_MAX_DIMS];
  pc_device** devices = pw_zeros(n > s->num_devices ? 1 : n, sizeof *devices);
  pathways_error err = devices ? pc_devices(s, n > s->num_devices ? NULL : o.devices, n, devices) : pc_no_array(1);
  if (err == 0) err = pc_lay("program_input", &o, n, tiles, dims);
  if (err == 0) {
    pc_array* a = pc_array_make(s, pw_shape_new((PJRT_Buffer_Type)o.type, dims, o.num_dims), tiles, n);
    err = a ? add_input(c, a, devices, array) : pc_no_array(n);
  }
  free(devices);
  return err;
}

// arrays gets arrays of a session, each with a reference, and counts their shards. With an error it gets none.
static pathways_error arrays(const char* call, const pc_session* s, const pathways_array* handles, size_t n,
                             pc_array** out, size_t* shards) {
  *shards = 0;
  pathways_error err = 0;
  size_t got = 0;
  while (got < n && err == 0) {
    if ((err = pc_get(handles[got], PC_ARRAY, &out[got]))) break;
    pc_array* a = out[got++];
    *shards += a->num_shards;
    if (a->base.session != s)
      err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "%s: array %zu is of another session", call, got - 1);
  }
  for (size_t i = 0; i < got && err; i++) pc_let(out[i]);
  return err;
}

// shards_of lists the shards of arrays, array after array; NULL: no memory.
static PJRT_Buffer** shards_of(pc_array* const* list, size_t n, size_t shards) {
  PJRT_Buffer** out = pw_zeros(shards, sizeof *out);
  for (size_t i = 0, at = 0; i < n && out; i++)
    for (size_t d = 0; d < list[i]->num_shards; d++) out[at++] = list[i]->shards[d].buffer;
  return out;
}

static pathways_error pc_no_program(void) { return pc_short("a program", sizeof(program)); }

// end_with ends a capture with results, and keeps the parts that the program needs.
static pathways_error end_with(capture* c, program* p, pc_array* const* list, size_t n) {
  PJRT_Buffer** shards = shards_of(list, n, p->out_shards);
  size_t* counts = pw_zeros(n, sizeof *counts);
  p->outputs = pw_zeros(n, sizeof *p->outputs);
  bool room = shards && counts && p->outputs;
  for (size_t i = 0; i < n && room; i++) {
    counts[i] = list[i]->num_shards;
    room = place_of(&p->outputs[i], list[i]);
    p->num_outputs += room;
  }
  pathways_error err =
      room ? pc_take(pp_finish(frontend_of(c->session), shards, counts, n, &p->program)) : pc_no_program();
  free(counts);
  free(shards);
  if (err) return err;
  p->inputs = c->inputs;
  p->num_inputs = c->num_inputs;
  for (size_t i = 0; i < p->num_inputs; i++) p->in_shards += p->inputs[i].num_shards;
  return 0;
}

enum { kMost = 1 << 20 };  // inputs or results

pathways_error pathways_program_end(const pathways_array* outputs, size_t num_outputs, pathways_program* handle) {
  PC_TRY(pc_forked());
  capture* c = the();
  if (c == NULL) return no_capture("program_end");
  if (handle == NULL || outputs == NULL || num_outputs == 0 || num_outputs > kMost)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "program_end: the list of %zu results, or where to write the handle, is NULL or empty", num_outputs);
  pc_session* s = c->session;
  pc_array** list = pw_zeros(num_outputs, sizeof *list);
  program* p = pw_zeros(1, sizeof *p);
  pathways_error err =
      list && p ? arrays("program_end", s, outputs, num_outputs, list, &p->out_shards) : pc_no_program();
  if (err == 0) {
    err = end_with(c, p, list, num_outputs);
    for (size_t i = 0; i < num_outputs; i++) pc_let(list[i]);
    if (err == 0) {
      pthread_setspecific(key, NULL);
      free(c);
      err = pc_new(&p->base, PC_PROGRAM, s, handle);
      p = NULL;
      pc_let(s);  // the capture's
    }
  }
  if (p) places_free(p->outputs, p->num_outputs);
  free(p);
  free(list);
  return err;
}

pathways_error pathways_program_info(pathways_program handle, pathways_program_info_t* info) {
  PC_STRUCT(info, "pathways_program_info_t");
  program* p;
  PC_TRY(pc_get(handle, PC_PROGRAM, &p));
  pathways_program_info_t i = {.num_inputs = (int32_t)p->num_inputs,
                               .num_outputs = (int32_t)p->num_outputs,
                               .num_nodes = (int32_t)pp_num_nodes(p->program)};
  PC_WRITE(info, i);
  pc_let(p);
  return 0;
}

// ---- playing ----

// check_layout checks that an array is distributed as an input is; the play checks its shards' devices and shapes.
static pathways_error check_layout(size_t i, const place* as, const pc_array* a) {
  if (a->num_shards == as->num_shards &&
      (!a->tiled || memcmp(a->tiles, as->tiles, a->shape->num_dims * sizeof *a->tiles) == 0))
    return 0;
  return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                 "program_play: input %zu has %zu shards where the program has %zu, or other tiles", i, a->num_shards,
                 as->num_shards);
}

static void drop_shard(const PJRT_Api* api, PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = buffer;
  PJRT_Error* err = api->PJRT_Buffer_Destroy(&a);
  if (err) pw_error_free(err);
}

// results makes arrays of a program's results. With an error it makes none.
static pathways_error results(pc_session* s, const program* p, PJRT_Buffer** shards, pathways_array* outputs) {
  uint64_t* handles = pw_zeros(p->num_outputs, sizeof *handles);
  pathways_error err = handles ? 0 : pc_no_array(p->num_outputs);
  size_t given = 0, at = 0;
  for (size_t i = 0; i < p->num_outputs; i++) {
    const place* as = &p->outputs[i];
    pc_array* a = pc_array_make(s, pw_shape_hold(as->shape, 1), as->tiled ? as->tiles : NULL, as->num_shards);
    if (a == NULL) {
      if (err == 0) err = pc_no_array(as->num_shards);
      for (size_t d = 0; d < as->num_shards; d++) drop_shard(s->api, shards[at++]);
      continue;
    }
    for (size_t d = 0; d < as->num_shards; d++) {
      a->shards[d].buffer = shards[at++];
      a->shards[d].device = as->devices[d];
    }
    if (err) pc_array_free(a);
    else if ((err = pc_new(&a->base, PC_ARRAY, s, &handles[given])) == 0) given++;
  }
  for (size_t i = 0; i < given && err; i++) pc_discard(handles[i]);
  if (err == 0) memcpy(outputs, handles, p->num_outputs * sizeof *outputs);
  free(handles);
  return err;
}

pathways_error pathways_program_play(pathways_program handle, const pathways_array* inputs, size_t num_inputs,
                                     pathways_array* outputs, size_t num_outputs) {
  if ((inputs == NULL && num_inputs) || outputs == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "program_play: the list of inputs or of results is NULL");
  program* p;
  PC_TRY(pc_get(handle, PC_PROGRAM, &p));
  pc_session* s = p->base.session;
  pathways_error err = 0;
  if (num_inputs != p->num_inputs || num_outputs != p->num_outputs)
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT,
                  "program_play: the program takes %zu arrays and returns %zu; the call has %zu, and room for %zu",
                  p->num_inputs, p->num_outputs, num_inputs, num_outputs);
  else if (pp_capturing)
    err =
        pc_fail(PATHWAYS_FAILED_PRECONDITION,
                "program_play: this thread captures a program, and no other is played in it; call what it is made of");
  pc_array** list = pw_zeros(p->num_inputs, sizeof *list);
  if (err == 0 && list == NULL) err = pc_no_array(p->num_inputs);
  size_t shards = 0, got = 0;
  if (err == 0 && (err = arrays("program_play", s, inputs, num_inputs, list, &shards)) == 0) got = num_inputs;
  for (size_t i = 0; i < got && err == 0; i++) err = check_layout(i, &p->inputs[i], list[i]);
  if (err == 0) {
    PJRT_Buffer **in = shards_of(list, got, shards), **out = pw_zeros(p->out_shards, sizeof *out);
    err = in && out ? pc_take(pp_play_shards(p->program, in, out)) : pc_no_array(p->out_shards);
    if (err == 0) err = results(s, p, out, outputs);
    free(out);
    free(in);
  }
  for (size_t i = 0; i < got; i++) pc_let(list[i]);
  free(list);
  pc_let(p);
  return err;
}
