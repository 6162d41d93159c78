// Arrays leave a client and come to it by programs that are not run (export.h): what both
// frontends do about that, in terms of pp_door.
#include <stdlib.h>

#include "capture.h"

static PJRT_Error* export_arrays(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args) {
  if (pp_capturing && pp_any_symbol(door, args)) return pp_export(door, args);
  size_t m = args->num_args;
  pp_executable x;
  door->describe(args->executable, &x);
  if (m == 0 || args->num_devices == 0 || x.num_outputs)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes arrays and gives none", x.name);
  pw_held** all = pw_zeros(m, sizeof *all);
  if (all == NULL) return pw_short("arrays that leave their client", m * sizeof *all);
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < m && err == NULL; i++) err = door->export_argument(args, i, &all[i]);
  if (err == NULL) err = door->made(args, all[0]);
  if (err == NULL && !pw_exported(all, m)) err = pw_short("arrays that leave their client", m * sizeof(uint64_t));
  for (size_t i = 0; i < m && err; i++) pw_held_drop(all[i]);
  free(all);
  return err;
}

// fits reports why an array cannot be a result of an import program.
static PJRT_Error* fits(const pp_door* door, PJRT_LoadedExecutable* executable, const pp_executable* x, size_t o,
                        pw_held* held) {
  bool ours = held->base.client == x->client && !pp_symbolic(held);
  size_t shards = ours ? door->shards(held) : 0;
  if (!ours || !door->fresh(held) || shards != x->num_devices)
    return pw_error(
        PJRT_Error_Code_INVALID_ARGUMENT,
        "result %zu of %s is to be an array of %zu shards of this client that no client has; the one that is "
        "named has %zu",
        o, x->name, x->num_devices, shards);
  for (size_t d = 0; d < shards; d++) {
    pp_look want, is;
    door->output(executable, NULL, d, o, &want);
    door->look(held, d, &is);
    if (pw_shape_same(is.shape, want.shape) && is.device == want.device) continue;
    char wanted[256], named[256];
    pw_shape_text(want.shape, wanted, sizeof wanted);
    pw_shape_text(is.shape, named, sizeof named);
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "shard %zu of result %zu of %s is %s on device %d, and the array that is named has %s on device %d",
                    d, o, x->name, wanted, door->id(want.device), named, door->id(is.device));
  }
  return NULL;
}

// import_held makes arrays that this thread has named the results of a call. It takes them.
static PJRT_Error* import_held(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args, const pp_executable* x,
                               pw_held** all) {
  size_t n = x->num_devices, outs = x->num_outputs;
  PJRT_Error* err = NULL;
  if (args->num_devices != n)
    err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and is called for %zu", x->name, n,
                   args->num_devices);
  for (size_t o = 0; o < outs && err == NULL; o++) err = fits(door, args->executable, x, o, all[o]);
  PJRT_Buffer** row = pw_zeros(n, sizeof *row);
  if (err == NULL && row == NULL) err = pw_short("arrays that come to a client", n * sizeof *row);
  if (err == NULL) err = door->made(args, all[0]);
  for (size_t o = 0; o < outs; o++) {
    if (err) {
      pw_held_drop(all[o]);
      continue;
    }
    door->take(all[o], row);
    for (size_t d = 0; d < n; d++) args->output_lists[d][o] = row[d];
  }
  free(row);
  return err;
}

static PJRT_Error* import_arrays(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args) {
  if (pp_capturing && pp_input()) return pp_inputs(door, args);
  pp_executable x;
  door->describe(args->executable, &x);
  pw_held** all = pw_zeros(x.num_outputs, sizeof *all);
  if (all == NULL) return pw_short("arrays that come to a client", x.num_outputs * sizeof *all);
  PJRT_Error* err;
  if (x.num_outputs == 0 || !pw_imported(all, x.num_outputs))
    err = pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                   "%s: its thread has to name %zu arrays with pathways_import before", x.name, x.num_outputs);
  else if (pp_symbolic(all[0]))
    err = pp_import(door, args, all);
  else
    err = import_held(door, args, &x, all);
  free(all);
  return err;
}

PJRT_Error* pp_through(const pp_door* door, pw_port port, PJRT_LoadedExecutable_Execute_Args* args) {
  return port == PW_EXPORTS ? export_arrays(door, args) : import_arrays(door, args);
}
