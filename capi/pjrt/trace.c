// A trace of gangs: which computation each device worked on, and when.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "door.h"

enum { kMaxSpans = 1 << 20 };  // further ones are counted, not kept

typedef struct {
  const char* name;  // interned below
  uint64_t gang;
  int32_t device;  // id, as JAX numbers it
  int64_t begin, launched, end;  // ns; end 0 while it runs
} span;

typedef struct name {
  struct name* next;
  char text[];
} name;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards all below
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER;
static span* spans;
static size_t num_spans, room;
static size_t running;   // spans without an end
static uint64_t epoch;   // of the trace; ends of an older one are dropped
static int64_t lost;
static name* names;
static FILE* file;
static bool stopping;
_Atomic bool pw_tracing;

int64_t pw_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static const char* intern(const char* text) {
  for (name* n = names; n; n = n->next)
    if (strcmp(n->text, text) == 0) return n->text;
  size_t size = strlen(text) + 1;
  name* n = malloc(sizeof *n + size);
  memcpy(n->text, text, size);
  n->next = names;
  names = n;
  return n->text;
}

typedef struct {
  uint64_t epoch;
  size_t span;
} pending;

static void finished(PJRT_Error* error, void* user_arg) {
  pending* p = user_arg;
  int64_t now = pw_now();
  if (error) pw_error_free(error);
  pthread_mutex_lock(&mu);
  if (p->epoch == epoch && spans) {
    spans[p->span].end = now;
    if (--running == 0) pthread_cond_broadcast(&settled);
  }
  pthread_mutex_unlock(&mu);
  free(p);
}

void pw_trace_run(PJRT_LoadedExecutable* e, uint64_t gang, PJRT_Device* const* devices, size_t n, int64_t begin,
                  int64_t end, PJRT_Event** done) {
  pthread_mutex_lock(&mu);
  if (spans == NULL) {
    pthread_mutex_unlock(&mu);
    return;
  }
  if (num_spans + n > room) {
    if (room + n > kMaxSpans) {
      lost += (int64_t)n;
      pthread_mutex_unlock(&mu);
      return;
    }
    room = 2 * room + n;
    spans = realloc(spans, room * sizeof *spans);
  }
  size_t first = num_spans;
  const char* text = intern(e->name);
  for (size_t d = 0; d < n; d++)
    spans[num_spans++] = (span){text, gang, devices[d]->id, begin, end, done && done[d] ? 0 : end};
  uint64_t at = epoch;
  for (size_t d = 0; done && d < n; d++) running += done[d] != NULL;
  pthread_mutex_unlock(&mu);
  for (size_t d = 0; done && d < n; d++) {
    if (done[d] == NULL) continue;
    pending* p = malloc(sizeof *p);
    *p = (pending){at, first + d};
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = done[d];
    on.callback = finished;
    on.user_arg = p;
    PJRT_Error* err = pw_under->PJRT_Event_OnReady(&on);
    if (err) finished(err, p);
  }
}

char* pw_trace_start(const char* path) {
  char* message = NULL;
  pthread_mutex_lock(&mu);
  if (path == NULL) {
    message = strdup("INVALID_ARGUMENT: a trace needs the path of a file to be written to");
  } else if (file) {
    message = strdup("FAILED_PRECONDITION: a trace is being written already; end it before another begins");
  } else if ((file = fopen(path, "w")) == NULL) {
    if (asprintf(&message, "NOT_FOUND: cannot write the trace to %s: %s", path, strerror(errno)) < 0) message = NULL;
  } else {
    room = 4096;
    spans = malloc(room * sizeof *spans);
    num_spans = running = 0;
    lost = 0;
    epoch++;
    pw_tracing = true;
  }
  pthread_mutex_unlock(&mu);
  return message;
}

static int by_device_and_time(const void* a, const void* b) {
  const span *x = a, *y = b;
  if (x->device != y->device) return x->device < y->device ? -1 : 1;
  if (x->end != y->end) return x->end < y->end ? -1 : 1;
  return x->gang < y->gang ? -1 : x->gang > y->gang;
}

static void write_text(const char* text) {
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', file);
    if ((unsigned char)*text >= ' ') fputc(*text, file);
  }
}

static void write_spans(void) {
  int pid = (int)getpid();
  qsort(spans, num_spans, sizeof *spans, by_device_and_time);
  fprintf(file, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"Open Pathways\"}}", pid);
  int64_t before = 0;
  for (size_t i = 0; i < num_spans; i++) {
    span* s = &spans[i];
    if (i == 0 || s->device != s[-1].device) {
      before = 0;
      fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"device %d\"}}",
              pid, s->device, s->device);
    }
    if (s->end == 0) continue;  // still running when the trace was ended
    // A device works on one computation after the other: one that was queued
    // behind another began when that one ended.
    int64_t begin = s->begin > before ? s->begin : before;
    if (begin > s->end) begin = s->end;
    before = s->end;
    fprintf(file, ",\n{\"ph\":\"X\",\"name\":\"");
    write_text(s->name);
    fprintf(file, "\",\"cat\":\"gang\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"gang\":%" PRIu64
                  ",\"queued_us\":%.3f,\"launch_us\":%.3f}}",
            pid, s->device, begin / 1e3, (s->end - begin) / 1e3, s->gang, (begin - s->begin) / 1e3,
            (s->launched - s->begin) / 1e3);
  }
  fprintf(file, "\n],\"otherData\":{\"dropped\":\"%" PRId64 "\"}}\n", lost);
}

char* pw_trace_stop(void) {
  char* message = NULL;
  pthread_mutex_lock(&mu);
  if (file == NULL || stopping) {
    message = strdup("FAILED_PRECONDITION: no trace is being written");
    goto out;
  }
  pw_tracing = false;
  stopping = true;
  // Work that was started while the trace ran belongs to it; it is waited for,
  // but not for ever.
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 5;
  while (running > 0 && pthread_cond_timedwait(&settled, &mu, &until) == 0) {}
  epoch++;
  write_spans();
  bool short_write = ferror(file) != 0;
  if (fclose(file) != 0 || short_write) message = strdup("DATA_LOSS: the trace could not be written whole; is the disk full?");
  file = NULL;
  stopping = false;
  free(spans);
  spans = NULL;
  while (names) {
    name* n = names;
    names = n->next;
    free(n);
  }
out:
  pthread_mutex_unlock(&mu);
  return message;
}
