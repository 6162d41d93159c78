// Arrays leave a client and enter it by export and import programs, which are not run (export.h). This is the part that
// both frontends share, in terms of pp_frontend.
#include <stdlib.h>

#include "graph.h"

static PJRT_Error* export_arrays(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  if (pp_capturing && pp_any_symbol(frontend, args)) return pp_export(frontend, args);
  size_t m = args->num_args;
  pp_executable x;
  frontend->describe(args->executable, &x);
  if (m == 0 || args->num_devices == 0 || x.num_outputs)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes arrays and returns none", x.name);
  pw_export** all = pw_zeros(m, sizeof *all);
  if (all == NULL) return pw_short("exported arrays", m * sizeof *all);
  PJRT_Error* err = NULL;
  if (pp_capturing && pp_capturing->program->base.client == NULL) err = pp_join(frontend, x.client);  // a result
  for (size_t i = 0; i < m && err == NULL; i++) err = frontend->export_argument(args, i, &all[i]);
  if (err == NULL) err = frontend->made(args, all[0]);
  if (err == NULL && !pw_exported(all, m)) err = pw_short("exported arrays", m * sizeof(uint64_t));
  for (size_t i = 0; i < m && err; i++) pw_export_drop(all[i]);
  free(all);
  return err;
}

// fits returns an error if an array cannot be a result of an import program.
static PJRT_Error* fits(const pp_frontend* frontend, PJRT_LoadedExecutable* executable, const pp_executable* x,
                        size_t o, pw_export* exported) {
  bool ours = exported->base.client == x->client && !pp_symbolic(exported);
  size_t shards = ours ? frontend->shards(exported) : 0;
  if (!ours || !frontend->fresh(exported) || shards != x->num_devices)
    return pw_error(
        PJRT_Error_Code_INVALID_ARGUMENT,
        "result %zu of %s must be an array of %zu shards of this client that is not imported yet; the named one has "
        "%zu",
        o, x->name, x->num_devices, shards);
  for (size_t d = 0; d < shards; d++) {
    pp_look want, is;
    frontend->output(executable, NULL, d, o, &want);
    frontend->look(exported, d, &is);
    if (pw_shape_same(is.shape, want.shape) && is.device == want.device) continue;
    char wanted[256], named[256];
    pw_shape_text(want.shape, wanted, sizeof wanted);
    pw_shape_text(is.shape, named, sizeof named);
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "shard %zu of result %zu of %s is %s on device %d, and the named array has %s on device %d", d, o,
                    x->name, wanted, frontend->id(want.device), named, frontend->id(is.device));
  }
  return NULL;
}

// import_exports makes the arrays that this thread has named the results of a call. It takes them.
static PJRT_Error* import_exports(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args,
                                  const pp_executable* x,
                                  pw_export** all) {
  size_t n = x->num_devices, outs = x->num_outputs;
  PJRT_Error* err = NULL;
  if (args->num_devices != n)
    err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and is called for %zu", x->name, n,
                   args->num_devices);
  for (size_t o = 0; o < outs && err == NULL; o++) err = fits(frontend, args->executable, x, o, all[o]);
  PJRT_Buffer** row = pw_zeros(n, sizeof *row);
  if (err == NULL && row == NULL) err = pw_short("imported arrays", n * sizeof *row);
  if (err == NULL) err = frontend->made(args, all[0]);
  for (size_t o = 0; o < outs; o++) {
    if (err) {
      pw_export_drop(all[o]);
      continue;
    }
    frontend->take(all[o], row);
    for (size_t d = 0; d < n; d++) args->output_lists[d][o] = row[d];
  }
  free(row);
  return err;
}

static PJRT_Error* import_arrays(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  if (pp_capturing && pp_input()) return pp_inputs(frontend, args);
  pp_executable x;
  frontend->describe(args->executable, &x);
  pw_export** all = pw_zeros(x.num_outputs, sizeof *all);
  if (all == NULL) return pw_short("imported arrays", x.num_outputs * sizeof *all);
  PJRT_Error* err;
  if (x.num_outputs == 0 || !pw_imported(all, x.num_outputs))
    err = pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                   "%s: its thread must name %zu arrays with pathways_import first", x.name, x.num_outputs);
  else if (pp_symbolic(all[0]))
    err = pp_import(frontend, args, all);
  else
    err = import_exports(frontend, args, &x, all);
  free(all);
  return err;
}

PJRT_Error* pp_through(const pp_frontend* frontend, pw_port port, PJRT_LoadedExecutable_Execute_Args* args) {
  return port == PW_EXPORTS ? export_arrays(frontend, args) : import_arrays(frontend, args);
}
