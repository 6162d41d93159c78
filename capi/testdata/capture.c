// Tests of capi/capture: what a thread asks of a frontend becomes a graph, and the graph computes the same. The frontend
// here has one number in each buffer; its programs add up their arguments.
#include "unit.h"

#include "graph.h"

char* pwGoPlan(size_t num_dims, int64_t* dims, size_t num_from, int64_t* from, size_t num_to, int64_t* to,
               char* memory, uint64_t* plan) {
  (void)num_dims, (void)dims, (void)num_from, (void)from, (void)num_to, (void)to, (void)memory, (void)plan;
  abort();  // no test makes a plan
}
char* pwGoPlanHold(uint64_t plan, size_t* shards, size_t* dims) { (void)plan, (void)shards, (void)dims, abort(); }
void pwGoPlanTo(uint64_t plan, int64_t* devices, int64_t* size, char** memory) {
  (void)plan, (void)devices, (void)size, (void)memory, abort();
}
void pwGoPlanFree(uint64_t plan) { (void)plan, abort(); }

// ---- the frontend ----

typedef struct {
  pp_look look;
  pp_symbol symbol;
  bool is_symbol;
  int64_t number;
  PJRT_Error_Code code;  // of what stands in place of the number
  char text[300];
} buffer;

struct PJRT_LoadedExecutable {
  const char* name;
  size_t devices, outs;
  int64_t params;
  int refs;
  PJRT_Client* client;
};

static int clients[2], devices[2], memories[2];
static pw_shape* scalar;
static int alive;  // buffers

static PJRT_Client* const client = (PJRT_Client*)&clients[0];
static buffer* of(PJRT_Buffer* handle) { return (buffer*)handle; }
static pp_look look_on(int device) {
  static const int64_t order[1];  // of no dimensions
  return (pp_look){(PJRT_Device*)&devices[device], (PJRT_Memory*)&memories[device], scalar, order};
}

static PJRT_Buffer* make(pp_look look, int64_t number) {
  buffer* b = calloc(1, sizeof *b);
  b->look = look;
  b->number = number;
  alive++;
  return (PJRT_Buffer*)b;
}

static PJRT_Error* destroy(PJRT_Buffer_Destroy_Args* args) {
  free(args->buffer);
  alive--;
  return NULL;
}

static void drop(PJRT_Buffer* b) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, args);
  args.buffer = b;
  destroy(&args);
}

static PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  const PJRT_LoadedExecutable* e = args->executable;
  if (strcmp(e->name, "fails") == 0) return pw_error(PJRT_Error_Code_ABORTED, "it cannot add");
  for (size_t d = 0; d < args->num_devices; d++) {
    int64_t sum = 0;
    for (size_t i = 0; i < args->num_args; i++) {
      CHECK(!of(args->argument_lists[d][i])->is_symbol);
      sum += of(args->argument_lists[d][i])->number;
    }
    for (size_t o = 0; o < e->outs; o++) args->output_lists[d][o] = make(look_on((int)d), sum + (int64_t)o);
  }
  return NULL;
}

static PJRT_Device* where(PJRT_Memory* memory) { return (PJRT_Device*)&devices[(int*)memory - memories]; }

static PJRT_Error* copy(PJRT_Buffer_CopyToMemory_Args* args) {
  args->dst_buffer = make(look_on((int)((int*)args->dst_memory - memories)), of(args->buffer)->number);
  return NULL;
}

static PJRT_Error* unmade(const pp_look* look, PJRT_Error_Code code, const char* message, const pp_symbol* symbol,
                          PJRT_Buffer** out) {
  buffer* b = of(*out = make(*look, 0));
  b->code = code;
  snprintf(b->text, sizeof b->text, "%s", message);
  if ((b->is_symbol = symbol != NULL)) b->symbol = *symbol;
  return NULL;
}

static bool seen(PJRT_Buffer* handle, pp_look* look, const pp_symbol** symbol) {
  if (handle == NULL) return false;  // stands for one that was destroyed
  *look = of(handle)->look;
  *symbol = of(handle)->is_symbol ? &of(handle)->symbol : NULL;
  return true;
}

static PJRT_Error* share(PJRT_Buffer* handle, bool donate, PJRT_Buffer** out) {
  (void)donate;
  buffer* b = of(*out = make(of(handle)->look, 0));
  *b = *of(handle);
  return NULL;
}

static void describe(PJRT_LoadedExecutable* e, pp_executable* out) {
  *out = (pp_executable){e->client, e->name, e->devices, e->outs, e->params};
}
static const pw_shape* param(PJRT_LoadedExecutable* e, size_t i) { return (void)e, (void)i, scalar; }
static void output(PJRT_LoadedExecutable* e, PJRT_Device* only, size_t row, size_t o, pp_look* out) {
  (void)e, (void)only, (void)o;
  *out = look_on((int)row);
}
static void hold(PJRT_LoadedExecutable* e) { e->refs++; }
static void let(PJRT_LoadedExecutable* e) { e->refs--; }
static PJRT_Client* client_of(PJRT_Device* device) { return (void)device, client; }

static const pp_frontend frontend = {.execute = execute, .copy = copy, .destroy = destroy, .unmade = unmade,
                                     .seen = seen, .share = share, .describe = describe, .param = param,
                                     .output = output, .hold = hold, .drop = let, .client = client_of, .where = where};

static PJRT_LoadedExecutable add = {"add", 1, 1, 2, 0, (PJRT_Client*)&clients[0]};
static PJRT_LoadedExecutable both = {"both", 1, 2, 1, 0, (PJRT_Client*)&clients[0]};
static PJRT_LoadedExecutable fails = {"fails", 1, 2, 1, 0, (PJRT_Client*)&clients[0]};
static PJRT_LoadedExecutable foreign = {"foreign", 1, 1, 1, 0, (PJRT_Client*)&clients[1]};

// call records a call on one device.
static PJRT_Error* call(PJRT_LoadedExecutable* e, PJRT_Buffer* const* arguments, size_t n, PJRT_Buffer** results) {
  PW_ARGS(PJRT_ExecuteOptions, options);
  options.call_location = "train.py:7";
  PW_ARGS(PJRT_LoadedExecutable_Execute_Args, args);
  args.executable = e;
  args.options = &options;
  args.argument_lists = &arguments;
  args.num_devices = 1;
  args.num_args = n;
  args.output_lists = &results;
  return pp_execute(&frontend, &args);
}

static PJRT_Buffer* input(void) {
  pp_look look = look_on(0);
  PJRT_Buffer* out;
  WALK(short_of(pp_input_new(&frontend, client, &look, 1, &out)), );
  return out;
}

static bool begins(void) {
  char* refusal = pp_begin();
  CHECK(refusal == NULL || strncmp(refusal, "RESOURCE_EXHAUSTED: ", 20) == 0);
  pw_refusal_free(refusal);
  return refusal == NULL;
}

static void begin(void) { WALK(begins(), ); }

// end ends a capture with these results, which it drops, of one shard each.
static pp_program* end(PJRT_Buffer* const* results, size_t n) {
  size_t counts[8];
  for (size_t i = 0; i < n; i++) counts[i] = 1;
  pp_program* p;
  WALK(short_of(pp_finish(&frontend, results, counts, n, &p)), );
  for (size_t i = 0; i < n; i++) drop(results[i]);
  CHECK(pp_capturing == NULL);
  return p;
}

// ---- tests ----

// (x + 5) + (x + 5) + 1, and x + 5
static void a_graph_computes_what_was_called(void) {
  begin();
  PJRT_Buffer *x = input(), *five = make(look_on(0), 5), *y, *two[2], *z;
  WALK(short_of(call(&add, (PJRT_Buffer*[]){x, five}, 2, &y)), );
  WALK(short_of(call(&add, (PJRT_Buffer*[]){y, y}, 2, &z)), );
  WALK(short_of(call(&both, (PJRT_Buffer*[]){z}, 1, two)), );
  CHECK(pp_is_symbol(&frontend, z) && !pp_is_symbol(&frontend, five));
  drop(x), drop(five), drop(z), drop(two[0]);
  pp_program* p = end((PJRT_Buffer*[]){two[1], y}, 2);
  CHECK(pp_num_nodes(p) == 3 && add.refs == 2 && both.refs == 1);
  int constants = alive;
  for (int64_t n = 1; n < 4; n++) {
    PJRT_Buffer *given = make(look_on(0), n), *results[2];
    WALK(short_of(pp_play_shards(p, &given, results)), );
    CHECK(of(results[0])->number == 2 * (n + 5) + 1 && of(results[1])->number == n + 5);
    CHECK(alive == constants + 3);  // what no later node reads has gone
    drop(given), drop(results[0]), drop(results[1]);
  }
  pp_program_drop(p);
  CHECK(alive == 0 && add.refs == 0 && both.refs == 0);
}

static void a_result_may_be_named_twice_and_be_an_input_or_a_constant(void) {
  begin();
  PJRT_Buffer *x = input(), *again, *five = make(look_on(0), 5);
  share(x, false, &again);
  pp_program* p = end((PJRT_Buffer*[]){x, again, five}, 3);
  PJRT_Buffer *given = make(look_on(0), 9), *results[3];
  CHECK(pp_play_shards(p, &given, results) == NULL);
  CHECK(results[0] != results[1] && of(results[0])->number == 9 && of(results[1])->number == 9);
  CHECK(of(results[2])->number == 5);
  drop(given);
  for (int i = 0; i < 3; i++) drop(results[i]);
  pp_program_drop(p);
  CHECK(alive == 0);
}

static void copies_of_an_arrays_shards_are_one_node(void) {
  begin();
  pp_look looks[2] = {look_on(0), look_on(1)};
  PJRT_Buffer *x[2], *moved[2];
  CHECK(pp_input_new(&frontend, client, looks, 2, x) == NULL);
  for (int i = 0; i < 2; i++)
    WALK(short_of(pp_copy(&frontend, x[i], (PJRT_Memory*)&memories[1 - i], &moved[i])), );
  drop(x[0]), drop(x[1]);
  size_t count = 2;
  pp_program* p;
  CHECK(pp_finish(&frontend, moved, &count, 1, &p) == NULL && pp_num_nodes(p) == 1);
  drop(moved[0]), drop(moved[1]);
  PJRT_Buffer *given[2] = {make(look_on(0), 1), make(look_on(1), 2)}, *results[2];
  CHECK(pp_play_shards(p, given, results) == NULL);
  CHECK(of(results[0])->number == 1 && of(results[0])->look.device == (PJRT_Device*)&devices[1]);
  CHECK(of(results[1])->number == 2 && of(results[1])->look.device == (PJRT_Device*)&devices[0]);
  drop(results[0]), drop(results[1]);
  PJRT_Buffer* swapped[2] = {given[1], given[0]};
  FAILS(pp_play_shards(p, swapped, results), PJRT_Error_Code_INVALID_ARGUMENT, "differ from those of the capture");
  drop(given[0]), drop(given[1]);
  pp_program_drop(p);
  CHECK(alive == 0);
}

static void a_node_that_fails_names_itself_and_its_line_in_all_its_results(void) {
  begin();
  PJRT_Buffer *x = input(), *bad[2], *good;
  CHECK(call(&fails, &x, 1, bad) == NULL && call(&add, (PJRT_Buffer*[]){x, x}, 2, &good) == NULL);
  drop(x);
  pp_program* p = end((PJRT_Buffer*[]){bad[0], bad[1], good}, 3);
  PJRT_Buffer *given = make(look_on(0), 4), *results[3];
  CHECK(pp_play_shards(p, &given, results) == NULL);
  for (int i = 0; i < 2; i++)
    CHECK(of(results[i])->code == PJRT_Error_Code_ABORTED &&
          strcmp(of(results[i])->text, "it cannot add [fails, called at train.py:7]") == 0);
  CHECK(of(results[2])->number == 8);
  drop(given);
  for (int i = 0; i < 3; i++) drop(results[i]);
  pp_program_drop(p);
  CHECK(alive == 0);
}

static void what_cannot_be_recorded_leaves_the_capture_as_it_was(void) {
  begin();
  char* refusal = pp_begin();
  CHECK(strncmp(refusal, "FAILED_PRECONDITION: ", 21) == 0);  // one at a time
  pw_refusal_free(refusal);
  PJRT_Buffer *x = input(), *y;
  FAILS(call(&add, &x, 1, &y), PJRT_Error_Code_INVALID_ARGUMENT, "add takes 2 arguments, and the call has 1");
  FAILS(call(&foreign, &x, 1, &y), PJRT_Error_Code_INVALID_ARGUMENT, "arrays of two clients");
  FAILS(call(&add, (PJRT_Buffer*[]){x, NULL}, 2, &y), PJRT_Error_Code_INVALID_ARGUMENT, "deleted or donated");
  CHECK(call(&add, (PJRT_Buffer*[]){x, x}, 2, &y) == NULL);
  drop(x);
  pp_program* p = end(&y, 1);
  CHECK(pp_num_nodes(p) == 1);
  pp_program_drop(p);
  CHECK(alive == 0 && add.refs == 0 && foreign.refs == 0);
}

static void an_array_of_a_capture_has_no_contents_elsewhere(void) {
  begin();
  PJRT_Buffer *x = input(), *y;
  pp_leave();
  CHECK(pp_capturing == NULL && of(x)->code == PJRT_Error_Code_FAILED_PRECONDITION);
  begin();
  FAILS(call(&add, (PJRT_Buffer*[]){x, x}, 2, &y), PJRT_Error_Code_FAILED_PRECONDITION, "has no contents");
  PJRT_Buffer* own = input();
  pp_program* p = end(&own, 1);
  FAILS(pp_play_shards(p, &x, &y), PJRT_Error_Code_FAILED_PRECONDITION, "input 0 is an array of a capture");
  drop(x);
  pp_program_drop(p);
  CHECK(alive == 0);
}

static void a_refusal_is_an_error_and_back(void) {
  FAILS(pp_error(pw_copy_text("NOT_FOUND: no such plan")), PJRT_Error_Code_NOT_FOUND, "no such plan");
  FAILS(pp_error(pw_copy_text("no code")), PJRT_Error_Code_UNKNOWN, "no code");
  FAILS(pp_error(pw_refusal(NULL)), PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory left");
  char* refusal = pp_refusal(pw_error(PJRT_Error_Code_DATA_LOSS, "it is lost"));
  CHECK(strcmp(refusal, "DATA_LOSS: it is lost") == 0);
  pw_refusal_free(refusal);
  CHECK(pp_refusal(NULL) == NULL && pp_error(NULL) == NULL);
}

int main(void) {
  scalar = pw_shape_new(PJRT_Buffer_Type_S64, NULL, 0);
  a_graph_computes_what_was_called();
  a_result_may_be_named_twice_and_be_an_input_or_a_constant();
  copies_of_an_arrays_shards_are_one_node();
  a_node_that_fails_names_itself_and_its_line_in_all_its_results();
  what_cannot_be_recorded_leaves_the_capture_as_it_was();
  an_array_of_a_capture_has_no_contents_elsewhere();
  a_refusal_is_an_error_and_back();
  pw_shape_drop(scalar);
  CHECK(pw_errors_alive == 0);
  return 0;
}
