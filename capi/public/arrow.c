// Arrow data as arrays of a session, and back, by the Arrow C data interface.
#include <stdlib.h>

#include "arrow.h"

// ---- in ----

// lent is Arrow data that arrays may read in place.
typedef struct {
  struct ArrowArray data;
  pthread_mutex_t mu;
  pthread_cond_t fewer;
  int64_t users;  // guarded by mu: arrays, and the call that makes them
} lent;

// free_lent frees what no array uses. The data stays the caller's.
static void free_lent(lent* l) {
  if (l == NULL) return;
  pthread_mutex_destroy(&l->mu);
  pthread_cond_destroy(&l->fewer);
  free(l);
}

static void end(void* arg) {
  lent* l = arg;
  l->data.release(&l->data);
  free_lent(l);
}

static void unused(void* arg) {
  lent* l = arg;
  pthread_mutex_lock(&l->mu);
  bool last = --l->users == 0;
  pthread_cond_signal(&l->fewer);
  pthread_mutex_unlock(&l->mu);
  if (last) pc_later(end, l);
}

static pathways_error put(pc_session* s, const pc_column* c, const pathways_host_options* options, lent* l,
                          pathways_array* array) {
  int64_t dims[PATHWAYS_MAX_DIMS], strides[PATHWAYS_MAX_DIMS];
  pc_column_strides(c, dims, strides);
  pathways_host_options o = *options;
  o.type = c->type;
  o.num_dims = c->n;
  o.dims = dims;
  o.byte_strides = strides;
  o.data = c->data;
  if (c->bytes && o.mode == PATHWAYS_BORROW_OR_FAIL)
    return pc_fail(PATHWAYS_FAILED_PRECONDITION, "Arrow data cannot be used without a copy: the booleans %s are bits",
                   c->name);
  if (c->bytes) o.mode = PATHWAYS_COPY;
  if (o.mode != PATHWAYS_COPY) {
    o.released = unused;
    o.released_arg = l;
    pthread_mutex_lock(&l->mu);
    l->users++;
    pthread_mutex_unlock(&l->mu);
  }
  pathways_error err = pc_put(s, &o, true, array);
  if (err && o.released) unused(l);
  return err;
}

static lent* new_lent(void) {
  lent* l = pw_zeros(1, sizeof *l);
  if (l == NULL) return NULL;
  l->users = 1;
  pthread_mutex_init(&l->mu, NULL);
  pthread_cond_init(&l->fewer, NULL);
  return l;
}

// put_all makes an array of each column, or none. In the latter case the devices no longer have the data.
static pathways_error put_all(pc_session* s, const pc_column* columns, size_t n, const pathways_host_options* options,
                              lent* l, pathways_array* made) {
  pathways_error err = 0;
  size_t done = 0;
  while (done < n && (err = put(s, &columns[done], options, l, &made[done])) == 0) done++;
  if (err == 0) return 0;
  while (done-- > 0) pc_discard(made[done]);
  pthread_mutex_lock(&l->mu);
  while (l->users > 1) pthread_cond_wait(&l->fewer, &l->mu);
  pthread_mutex_unlock(&l->mu);
  return err;
}

pathways_error pathways_arrays_from_arrow(pathways_session session, struct ArrowArray* data,
                                          const struct ArrowSchema* schema, const pathways_host_options* options,
                                          pathways_array* arrays, size_t num_arrays) {
  static const pathways_host_options none = {.struct_size = sizeof none};
  if (options == NULL) options = &none;
  PC_READ(pathways_host_options, o, options, "pathways_host_options");
  if (data == NULL || schema == NULL || data->release == NULL || schema->release == NULL ||
      (arrays == NULL && num_arrays))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "arrays_from_arrow: data, schema or the list of arrays is NULL, or was released or taken before");
  if (o.data || o.type || o.num_dims || o.dims || o.byte_strides || o.released)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "arrays_from_arrow: the options name data, type, dimensions, strides or released, which the data "
                   "has: expected 0");
  pc_column* columns;
  size_t n;
  bool batch;
  PC_TRY(pc_arrow_read(schema, data, &columns, &n, &batch));
  pc_session* s;
  pathways_error err = 0;
  if (num_arrays != n)
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "arrays_from_arrow: the data has %zu columns, and there is room for %zu",
                  n, num_arrays);
  if (err == 0) err = pc_get(session, PC_SESSION, &s);
  if (err == 0) {
    lent* l = new_lent();
    pathways_array* made = pw_zeros(n, sizeof *made);
    err = l && made ? put_all(s, columns, n, &o, l, made) : pc_no_array(n);
    if (err) {
      free_lent(l);
    } else {
      l->data = *data;
      data->release = NULL;
      if (n) memcpy(arrays, made, n * sizeof *arrays);
      pthread_mutex_lock(&l->mu);
      bool last = --l->users == 0;
      pthread_mutex_unlock(&l->mu);
      if (last) end(l);
    }
    free(made);
    pc_let(s);
  }
  pc_columns_free(columns, n);
  return err;
}

// ---- out ----

static void drop_view(void* owner) { pc_discard((pathways_view)(uintptr_t)owner); }

pathways_error pathways_array_to_arrow(pathways_array array, int32_t shard, struct ArrowArray* data,
                                       struct ArrowSchema* schema) {
  if (data == NULL || schema == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_to_arrow: data or schema is NULL: expected where to write them");
  pathways_array_info_t info = {.struct_size = sizeof info};
  PC_TRY(pathways_array_info(array, &info));
  if (pc_arrow_format(info.type) == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "array_to_arrow: Arrow has no type for elements of type %d; use pathways_array_to_dlpack",
                   (int)info.type);
  if (info.num_dims == 0)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_to_arrow: Arrow has no scalars: expected at least one dimension");
  pathways_view view;
  const void* bytes;
  PC_TRY(pathways_array_view(array, shard, &view, &bytes));
  if (!pc_arrow_describe(info.type, info.shard_dims, (size_t)info.num_dims, "", schema)) {
    pc_discard(view);
    return pc_no_array(1);
  }
  if (!pc_arrow_show(info.type, info.shard_dims, (size_t)info.num_dims, bytes, drop_view, (void*)(uintptr_t)view,
                     data)) {
    schema->release(schema);
    pc_discard(view);
    return pc_no_array(1);
  }
  return 0;
}
