// The errors of the table, and those of slots that the plugin lacks.
#include "embedded.h"

PJRT_Error* pw_unimplemented(const char* slot) {
  if (pw_under == NULL) return pw_load_error();
  return pw_error(PJRT_Error_Code_UNIMPLEMENTED,
                  "%s is not available: the plugin underneath (PJRT %d.%d) does not have it", slot,
                  pw_under->pjrt_api_version.major_version, pw_under->pjrt_api_version.minor_version);
}

// ---- slots ----

PJRT_Error* pw_PJRT_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args* args) {
  if (pw_error_ours(args->error)) return NULL;
  if (!PW_HAS(PJRT_Error_ForEachPayload)) return pw_unimplemented("PJRT_Error_ForEachPayload");
  return pw_under->PJRT_Error_ForEachPayload(args);
}
