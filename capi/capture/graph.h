// The graph that record.c makes, play.c plays and describe.c describes; graph.c has its parts.
#ifndef PATHWAYS_CAPI_CAPTURE_GRAPH_H_
#define PATHWAYS_CAPI_CAPTURE_GRAPH_H_

#include "capture.h"

// pp_ref is a shard: of a value, or, where value is PP_CONSTANT, a constant.
typedef struct {
  int32_t value, shard;
} pp_ref;
enum { PP_CONSTANT = -1 };

// pp_value is one logical array.
typedef struct {
  int32_t node;    // that makes it, or PP_INPUT
  int32_t output;  // of the node; or the number of the input
  int32_t last;    // node that reads it last, or -1
  int32_t n;       // shards
  size_t first;    // place of its first shard among those of all values
  bool kept;       // a result of the program
  bool donated;    // an input that belongs to the program
  pp_look* looks;  // n; shapes are references, layouts copies
} pp_value;
enum { PP_INPUT = -1 };

typedef enum { PP_EXECUTE, PP_COPY, PP_RESHARD } pp_kind;

typedef struct {
  pp_kind kind;
  char *name, *location;
  size_t rows, args, outs;
  pp_ref* refs;         // rows * args, row by row
  int32_t value;        // its first output; the others follow
  int32_t* dead;        // values that nobody reads after it
  size_t num_dead;
  PJRT_LoadedExecutable* executable;  // of PP_EXECUTE
  PJRT_Device* only;
  PJRT_ExecuteOptions options;
  int64_t* kept;        // arguments that are not donated
  void* functions;      // of the context in options, which belongs to the node
  PJRT_Memory** memories;  // of PP_COPY, one a row
  uint64_t plan;        // of PP_RESHARD
} pp_node;

typedef struct {
  pp_ref* refs;
  size_t n;
} pp_output;

struct pp_program {
  pw_numbered base;
  const pp_door* door;
  pp_node* nodes;
  size_t num_nodes, room_nodes;
  pp_value* values;
  size_t num_values, room_values, num_shards;
  PJRT_Buffer** constants;
  size_t num_constants, room_constants;
  int32_t* inputs;  // values
  size_t num_inputs;
  pp_output* outputs;
  size_t num_outputs;
  int64_t capture_ns, compile_ns;
  bool functions;      // some node calls functions
  _Atomic uintptr_t lowered;  // what play has made of it
};

// Where memory is short these return -1, false or NULL, and change nothing; pp_no_memory is
// the error of that.
//
// pp_value_new adds a value and returns its number. Its looks are copied.
int32_t pp_value_new(pp_program* p, int32_t node, int32_t output, const pp_look* looks, size_t n);
// pp_value_more adds a shard to the last value.
bool pp_value_more(pp_program* p, pp_value* value, const pp_look* look);
// pp_node_new writes a node behind the others, which does not count yet.
pp_node* pp_node_new(pp_program* p, pp_kind kind, const char* name, const PJRT_ExecuteOptions* options);
PJRT_Error* pp_no_memory(size_t bytes);
void pp_node_free(const pp_program* p, pp_node* n);
void pp_buffer_free(const pp_door* door, PJRT_Buffer* buffer);

// pp_play runs a program. It takes the inputs, and gives outputs.
PJRT_Error* pp_play(pp_program* program, pw_held* const* inputs, pw_held** outputs);
char* pp_text(const pp_program* program);  // JSON, malloc'd; NULL: no memory

// pp_interrupted says whether the user wants no more of what the calling thread does, and
// has Python raise the user's exception then. It listens at *next, which it puts off, and
// which is first what pp_listen gives.
int64_t pp_listen(void);
bool pp_interrupted(int64_t* next);

// Of the calling thread's capture; for pathways.h.
char* pp_announce(size_t n, const uint8_t* donated);
char* pp_end(const uint64_t* arrays, size_t n, int32_t* results, pp_program** out);
char* pp_read_at(void);

// The plans of held.go.
extern char* pwGoPlanHold(uint64_t plan, size_t* shards, size_t* dims);
extern void pwGoPlanFree(uint64_t plan);
extern void pwGoPlanTo(uint64_t plan, int64_t* devices, int64_t* size, char** memory);

#endif  // PATHWAYS_CAPI_CAPTURE_GRAPH_H_
