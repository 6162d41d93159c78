#include "pathways.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "embedded.h"
#include "interpreter.h"
#include "table.h"

int pathways_plugin_dirs(const char* directories) {
  if (pw_forked) return 1;
  pwGoDirs((char*)directories);
  return 0;
}

char* pathways_set_cluster(const char* address, const char* versions) {
  return pw_forked ? pw_forked_refusal() : pw_choose(address ? address : "", versions ? versions : "");
}

char* pathways_lost(void) { return pw_forked ? pw_forked_refusal() : pwGoLost(); }

char* pathways_moments(uint64_t after, int64_t timeout_ms) {
  return pw_forked ? pw_forked_refusal() : pwGoMoments(after, timeout_ms);
}

char* pathways_info(void) { return pw_forked ? pw_copy_text("{}") : pwGoInfo(); }

char* pathways_stats(void) { return pw_forked ? pw_copy_text("{}") : pwGoStats(); }

char* pathways_status(void) { return pw_forked ? pw_forked_refusal() : pwGoStatus(); }

char* pathways_trace_start(const char* path) { return pw_forked ? pw_forked_refusal() : pwGoTraceStart((char*)path); }

char* pathways_trace_stop(void) { return pw_forked ? pw_forked_refusal() : pwGoTraceStop(); }

char* pathways_shutdown(int64_t timeout_ms) { return pw_forked ? NULL : pwGoShutdown(timeout_ms, false); }
char* pathways_exit(int64_t timeout_ms) {
  if (pw_forked) return NULL;
  pw_python_leaves();
  return pwGoShutdown(timeout_ms, true);
}

void pathways_locate_python(const char* others) {
  if (others) pw_python_others(others);
  pw_set_locate(others ? pw_python_line : NULL);
}

int pathways_main(int argc, char** argv, const char* environment) {
  if (!pw_forked) return pwGoMain(argc, argv, (char*)environment);
  char* why = pw_forked_refusal();
  fprintf(stderr, "pathways: %s\n", why);
  free(why);
  return 1;
}

void pathways_free(char* text) { pw_refusal_free(text); }

void pathways_refused(void) { pw_python_stay(); }
